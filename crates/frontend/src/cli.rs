// SPDX-License-Identifier: Apache-2.0

//! The command line.
//!
//! Every setting can come from a flag or from an environment variable, and the flag wins. Three things differ from what
//! `clap` does by itself, because each has cost an operator an evening (field report BR-20):
//!
//! - a variable that holds only blanks is not set (charts and compose files write `X: ""` for "no value");
//! - a value that does not parse names the variable it came from, not the flag that nobody typed;
//! - an error is one line.
//!
//! So variables are turned into flags before `clap` sees them, and [`Sources`] remembers which flags were variables. A
//! switch `--x` also takes `--no-x`, as in `python -m dynamo.frontend`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::check::CheckArgs;
use crate::demo::DemoArgs;
use crate::output;
use crate::policies::PoliciesArgs;
use crate::serve::ServeArgs;
use crate::worker::WorkerArgs;

/// Dynamo's OpenAI-compatible frontend with a router that knows which regime the fleet is in.
#[derive(Debug, Parser)]
#[command(
    name = "regime-frontend",
    version,
    about = "Dynamo's OpenAI-compatible frontend with a router that knows which regime the fleet is in",
    long_about = "Dynamo's OpenAI-compatible frontend with a router that knows which regime the fleet is in.\n\n\
        Try it without a GPU or any other service:  regime-frontend serve --mock-workers 4\n\
        In front of real workers:                    regime-frontend serve --discovery-backend etcd\n\n\
        Flags beat environment variables, and both beat the policy file. A variable that holds only blanks is not set. \
        Switches are written --x, --x=false or --no-x.",
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the OpenAI API and route requests to workers.
    Serve(Box<ServeArgs>),
    /// Run one mock engine worker as a process of its own.
    Worker(Box<WorkerArgs>),
    /// Walk a small fleet of mock workers through all regimes and back, in about a minute.
    Demo(DemoArgs),
    /// Check a router-policy file and print the policy of each role.
    Check(CheckArgs),
    /// List the linked policies with their parameters and defaults.
    Policies(PoliciesArgs),
    /// Print a completion script for a shell.
    #[command(
        long_about = "Print a completion script for a shell, for instance\n\n  \
        regime-frontend completions bash > /etc/bash_completion.d/regime-frontend"
    )]
    Completions {
        /// The shell to complete for.
        shell: clap_complete::Shell,
    },
}

/// A parsed command line.
#[derive(Debug)]
pub struct Parsed {
    /// What to do.
    pub command: Command,
    /// Where each value came from.
    pub sources: Sources,
}

/// Where values came from, by argument name (`router_policy_config`).
#[derive(Debug, Default)]
pub struct Sources(HashMap<String, Source>);

/// Where one value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A flag, with its dashes.
    Flag(String),
    /// An environment variable.
    Variable(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => f.write_str(name),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

impl Sources {
    /// Where the value of argument `id` came from; `None` when it is a default.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<&Source> {
        self.0.get(id)
    }

    /// What to call argument `id` in a message: the flag or the variable that set it.
    #[must_use]
    pub fn name(&self, id: &str) -> String {
        self.of(id).map_or_else(
            || format!("--{}", id.replace('_', "-")),
            ToString::to_string,
        )
    }
}

/// Why parsing ended the program: help, a version, or a mistake.
#[derive(Debug)]
pub enum Exit {
    /// Text that was asked for.
    Shown(clap::Error),
    /// A mistake, as one line.
    Mistake(String),
}

impl Exit {
    /// Print it and give the exit code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            // Help asked for is printed on stdout and ends with 0; help for want of a subcommand with 2.
            Self::Shown(error) => {
                // A closed pipe (`… --help | head`) is no failure of ours.
                let _ = error.print();
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
            }
            Self::Mistake(line) => {
                output::say(line);
                ExitCode::from(2)
            }
        }
    }
}

/// Parse this process's arguments and environment.
///
/// # Errors
/// Help or a version that was asked for, or a mistake as one line.
pub fn parse() -> Result<Parsed, Exit> {
    parse_from(std::env::args_os().collect(), &|name| {
        std::env::var_os(name)
    })
}

/// Parse `arguments` (the first is the program) with the variables that `environment` knows.
///
/// # Errors
/// As [`parse`].
pub fn parse_from(
    arguments: Vec<OsString>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Parsed, Exit> {
    let command = Cli::command();
    let settings = arguments
        .get(1)
        .and_then(|name| command.find_subcommand(name))
        .map(settings)
        .unwrap_or_default();
    let (arguments, variables) = expand(&settings, arguments, environment);
    let matches = with_variables_in_help(command)
        .try_get_matches_from(arguments)
        .map_err(|error| explain(error, &settings, &variables))?;
    let sources = sources(&settings, &matches, variables);
    let cli = Cli::from_arg_matches(&matches).map_err(Exit::Shown)?;
    Ok(Parsed {
        command: cli.command,
        sources,
    })
}

/// Print the completion script for `shell`.
#[must_use]
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "regime-frontend", &mut script);
    output::print(&String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// What the expansion needs to know of one argument.
struct Setting {
    id: String,
    long: String,
    variable: Option<String>,
    switch: bool,
}

/// The arguments of a subcommand that have a long flag.
fn settings(command: &clap::Command) -> Vec<Setting> {
    command
        .get_arguments()
        .filter_map(|argument| {
            Some(Setting {
                id: argument.get_id().to_string(),
                long: format!("--{}", argument.get_long()?),
                variable: argument
                    .get_env()
                    .map(|name| name.to_string_lossy().into_owned()),
                switch: argument
                    .get_value_names()
                    .is_some_and(|names| names == ["BOOL"]),
            })
        })
        .collect()
}

/// `--no-x` becomes `--x=false`, and variables become flags unless the flag is given. The second result holds the
/// variable behind each flag that was added.
fn expand(
    settings: &[Setting],
    arguments: Vec<OsString>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> (Vec<OsString>, HashMap<String, Source>) {
    let mut given: Vec<OsString> = arguments;
    for argument in given.iter_mut().skip(2) {
        let positive = argument
            .to_str()
            .and_then(|text| text.strip_prefix("--no-"))
            .map(|name| format!("--{name}"));
        if let Some(setting) = settings
            .iter()
            .find(|setting| setting.switch && Some(&setting.long) == positive.as_ref())
        {
            *argument = format!("{}=false", setting.long).into();
        }
    }
    let is_given = |long: &str| {
        given
            .iter()
            .skip(2)
            .filter_map(|argument| argument.to_str())
            .any(|text| {
                text.strip_prefix(long)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            })
    };
    let mut added = Vec::new();
    let mut variables = HashMap::new();
    for setting in settings {
        let Some(variable) = &setting.variable else {
            continue;
        };
        let Some(value) = environment(variable).filter(|value| !is_blank(value)) else {
            continue;
        };
        if !is_given(&setting.long) {
            let mut argument = OsString::from(format!("{}=", setting.long));
            argument.push(value);
            added.push(argument);
            variables.insert(setting.id.clone(), Source::Variable(variable.clone()));
        }
    }
    let at = given.len().min(2);
    given.splice(at..at, added);
    (given, variables)
}

fn is_blank(value: &std::ffi::OsStr) -> bool {
    value.to_str().is_some_and(|text| text.trim().is_empty())
}

/// The variables were read already: `clap` shall only name them in the help.
fn with_variables_in_help(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            let Some(variable) = argument
                .get_env()
                .map(|name| name.to_string_lossy().into_owned())
            else {
                return argument;
            };
            let note = |text: &clap::builder::StyledStr| format!("{text} [env: {variable}]");
            let short = argument.get_help().map(note);
            let long = argument.get_long_help().map(note);
            argument
                .env(Resettable::<clap::builder::OsStr>::Reset)
                .help(Resettable::from(short.map(Into::into)))
                .long_help(Resettable::from(long.map(Into::into)))
        })
        .mut_subcommands(with_variables_in_help)
}

/// Where each value came from, for what is not a default.
fn sources(
    settings: &[Setting],
    matches: &clap::ArgMatches,
    variables: HashMap<String, Source>,
) -> Sources {
    let mut known = variables;
    if let Some((_, matches)) = matches.subcommand() {
        for setting in settings {
            if matches.value_source(&setting.id) == Some(ValueSource::CommandLine) {
                known
                    .entry(setting.id.clone())
                    .or_insert_with(|| Source::Flag(setting.long.clone()));
            }
        }
    }
    Sources(known)
}

/// A mistake as one line that names where the value came from.
fn explain(error: clap::Error, settings: &[Setting], variables: &HashMap<String, Source>) -> Exit {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Exit::Shown(error);
    }
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => {
            argument.split([' ', '[', '=']).next().unwrap_or_default()
        }
        _ => "",
    };
    let source = settings
        .iter()
        .find(|setting| setting.long == argument)
        .and_then(|setting| variables.get(&setting.id))
        .cloned();
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.clone(),
        _ => String::new(),
    };
    let valid = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => values.join(", "),
        _ => String::new(),
    };
    let source = source.unwrap_or_else(|| Source::Flag(argument.to_owned()));
    Exit::Mistake(match error.kind() {
        ErrorKind::InvalidValue if value.is_empty() => format!("{source}: a value is missing"),
        ErrorKind::InvalidValue => format!("{source}: \"{value}\" is not one of {valid}"),
        ErrorKind::ValueValidation => {
            let cause = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_default();
            let cause = cause.trim_start_matches(&value).trim_start();
            format!("{source}: \"{value}\" {cause}")
        }
        _ => first_paragraphs(&error.to_string()),
    })
}

/// What `clap` says before its usage text, as one line.
fn first_paragraphs(text: &str) -> String {
    let said = text.split("\n\nUsage:").next().unwrap_or(text);
    let said = said
        .split("\n\nFor more information")
        .next()
        .unwrap_or(said);
    output::squeeze(said.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, environment: &[(&str, &str)]) -> Result<Parsed, Exit> {
        let arguments = line.split_whitespace().map(OsString::from).collect();
        parse_from(arguments, &|name| {
            environment
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    fn serve(line: &str, environment: &[(&str, &str)]) -> (ServeArgs, Sources) {
        let parsed = parse(line, environment).unwrap();
        let Command::Serve(args) = parsed.command else {
            panic!("not serve")
        };
        (*args, parsed.sources)
    }

    fn mistake(line: &str, environment: &[(&str, &str)]) -> String {
        match parse(line, environment).unwrap_err() {
            Exit::Mistake(line) => line,
            Exit::Shown(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_variable_sets_what_no_flag_sets() {
        let (args, sources) = serve("f serve", &[("DYN_ROUTER_TEMPERATURE", "0.5")]);
        assert_eq!(args.tuning.router_temperature, Some(0.5));
        assert_eq!(
            sources.of("router_temperature").unwrap().to_string(),
            "environment variable DYN_ROUTER_TEMPERATURE"
        );
    }

    #[test]
    fn a_flag_beats_the_variable() {
        for line in [
            "f serve --router-temperature 0.25",
            "f serve --router-temperature=0.25",
        ] {
            let (args, sources) = serve(line, &[("DYN_ROUTER_TEMPERATURE", "0.5")]);
            assert_eq!(args.tuning.router_temperature, Some(0.25));
            assert_eq!(
                sources.of("router_temperature").unwrap().to_string(),
                "--router-temperature"
            );
        }
    }

    #[test]
    fn a_blank_variable_is_not_set() {
        let (args, sources) = serve(
            "f serve",
            &[("DYN_ROUTER_TEMPERATURE", "  "), ("DYN_HTTP_PORT", "")],
        );
        assert_eq!(args.tuning.router_temperature, None);
        assert_eq!(args.http.http_port, 8000);
        assert!(sources.of("router_temperature").is_none());
    }

    #[test]
    fn a_value_that_does_not_parse_names_its_variable() {
        assert_eq!(
            mistake("f serve", &[("DYN_ROUTER_TEMPERATURE", "0,5")]),
            "environment variable DYN_ROUTER_TEMPERATURE: \"0,5\" must be a finite number of at least 0, such as 0.5"
        );
    }

    #[test]
    fn a_value_that_does_not_parse_names_its_flag() {
        assert_eq!(
            mistake(
                "f serve --router-temperature 0,5",
                &[("DYN_ROUTER_TEMPERATURE", "0.5")]
            ),
            "--router-temperature: \"0,5\" must be a finite number of at least 0, such as 0.5"
        );
    }

    #[test]
    fn an_unknown_choice_lists_the_choices() {
        let line = mistake("f serve", &[("DYN_ROUTER_QUEUE_POLICY", "lifo")]);
        assert_eq!(
            line,
            "environment variable DYN_ROUTER_QUEUE_POLICY: \"lifo\" is not one of fcfs, lcfs, wspt"
        );
    }

    #[test]
    fn a_misspelt_flag_is_one_line_with_a_suggestion() {
        let line = mistake("f serve --router-temprature 1", &[]);
        assert!(
            line.contains("--router-temprature") && line.contains("--router-temperature"),
            "{line}"
        );
        assert!(!line.contains('\n') && !line.contains("Usage"), "{line}");
    }

    #[test]
    fn switches_take_a_bare_flag_a_value_and_no() {
        for (line, expected) in [
            ("f serve --router-kv-events", true),
            ("f serve --router-kv-events=false", false),
            ("f serve --no-router-kv-events", false),
        ] {
            assert_eq!(
                serve(line, &[]).0.tuning.router_kv_events,
                Some(expected),
                "{line}"
            );
        }
        let (args, _) = serve("f serve", &[("DYN_ROUTER_USE_KV_EVENTS", "off")]);
        assert_eq!(args.tuning.router_kv_events, Some(false));
    }

    #[test]
    fn no_switch_by_flag_beats_the_variable() {
        let (args, _) = serve(
            "f serve --no-router-kv-events",
            &[("DYN_ROUTER_USE_KV_EVENTS", "true")],
        );
        assert_eq!(args.tuning.router_kv_events, Some(false));
    }

    #[test]
    fn the_help_names_the_variables_without_their_values() {
        let Exit::Shown(help) = parse("f serve --help", &[("DYN_HTTP_PORT", "4711")]).unwrap_err()
        else {
            panic!("no help")
        };
        let help = help.to_string();
        assert!(
            help.contains("[env: DYN_HTTP_PORT]") && !help.contains("4711"),
            "{help}"
        );
    }
}
