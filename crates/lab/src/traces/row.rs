// SPDX-License-Identifier: Apache-2.0

//! A JSON object read strictly.
//!
//! Every field is taken by name and type, and at the end nothing may be left: a misspelt key would
//! otherwise be the same as an absent one, which Dynamo's own loaders accept in silence. Formats that
//! others extend freely (Weka, Dynamo's request trace) only warn about what is left. `null` is absent.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::fault::Findings;

/// May a field be absent?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Required,
    Optional,
}

/// What becomes of fields that nobody took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    Refuse,
    Warn,
}

/// Largest time in a file, in its own unit.
const LATEST: f64 = 1e13;

/// One object. A getter that meets a wrong value records a fault and returns nothing.
pub(crate) struct Row<'a> {
    findings: &'a Findings,
    line: u64,
    path: String,
    fields: Vec<(String, Value)>,
    known: Vec<&'static str>,
}

impl<'a> Row<'a> {
    /// The object on a line; a fault when there is none.
    pub(crate) fn parse(findings: &'a Findings, line: u64, text: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Fields>(text) {
            Ok(Fields(fields)) => Some(Self {
                findings,
                line,
                path: String::new(),
                fields,
                known: Vec::new(),
            }),
            Err(error) => {
                // The parser counts lines of its own.
                let reason = error.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default();
                let allowed = format!("one JSON object ({reason} at column {})", error.column());
                findings.fault(line, "line", String::from_utf8_lossy(text), allowed);
                None
            }
        }
    }

    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    pub(crate) fn findings(&self) -> &'a Findings {
        self.findings
    }

    /// Full name of a field of this object, for messages.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    pub(crate) fn fault(&self, field: &str, value: impl fmt::Display, allowed: impl fmt::Display) {
        self.findings
            .fault(self.line, self.name(field), value, allowed);
    }

    /// An integer of this range. The first of `names` is the field's own, the others are aliases.
    pub(crate) fn count(
        &mut self,
        names: &[&'static str],
        need: Need,
        range: RangeInclusive<u32>,
    ) -> Option<u32> {
        let allowed = format!("an integer from {} to {}", range.start(), range.end());
        let value = self.take(names, need, &allowed)?;
        let count = value.as_u64().and_then(|v| u32::try_from(v).ok());
        self.checked(names, &value, count.filter(|v| range.contains(v)), &allowed)
    }

    /// An integer of 64 bits.
    pub(crate) fn integer(&mut self, names: &[&'static str], need: Need) -> Option<u64> {
        let allowed = "an integer, at least 0";
        let value = self.take(names, need, allowed)?;
        self.checked(names, &value, value.as_u64(), allowed)
    }

    /// A signed integer of 32 bits.
    pub(crate) fn signed(&mut self, names: &[&'static str], need: Need) -> Option<i32> {
        let allowed = "an integer of 32 bits";
        let value = self.take(names, need, allowed)?;
        let signed = value.as_i64().and_then(|v| i32::try_from(v).ok());
        self.checked(names, &value, signed, allowed)
    }

    /// A time or a duration: not negative and, as ms since 1970, not after the year 2286.
    pub(crate) fn time(&mut self, names: &[&'static str], need: Need) -> Option<f64> {
        let allowed = "a number from 0 to 1e13";
        let value = self.take(names, need, allowed)?;
        let time = value.as_f64().filter(|v| (0.0..=LATEST).contains(v));
        self.checked(names, &value, time, allowed)
    }

    /// A string that is not blank.
    pub(crate) fn text(&mut self, names: &[&'static str], need: Need) -> Option<String> {
        let allowed = "a string that is not blank";
        let value = self.take(names, need, allowed)?;
        let text = value.as_str().filter(|v| !v.trim().is_empty());
        self.checked(names, &value, text.map(str::to_owned), allowed)
    }

    /// One of a few words.
    pub(crate) fn word(
        &mut self,
        name: &'static str,
        words: &[&'static str],
    ) -> Option<&'static str> {
        let allowed = words.join(", ");
        let value = self.take(&[name], Need::Required, &allowed)?;
        let word = words.iter().find(|word| value.as_str() == Some(word));
        self.checked(&[name], &value, word.copied(), &allowed)
    }

    /// A list of ids.
    pub(crate) fn ids(&mut self, names: &[&'static str], need: Need) -> Option<Vec<u64>> {
        let items = self.list(names, need, "a list of integers, each at least 0")?;
        let ids: Vec<u64> = items.iter().map_while(Value::as_u64).collect();
        if let Some(wrong) = items.get(ids.len()) {
            let field = format!("{}[{}]", names[0], ids.len());
            self.fault(&field, wrong, "an integer, at least 0");
            return None;
        }
        Some(ids)
    }

    /// A list of strings.
    pub(crate) fn texts(&mut self, names: &[&'static str], need: Need) -> Option<Vec<String>> {
        let items = self.list(names, need, "a list of strings")?;
        let texts: Vec<String> = items
            .iter()
            .map_while(|item| item.as_str().map(str::to_owned))
            .collect();
        if let Some(wrong) = items.get(texts.len()) {
            self.fault(&format!("{}[{}]", names[0], texts.len()), wrong, "a string");
            return None;
        }
        Some(texts)
    }

    /// A nested object.
    pub(crate) fn object(&mut self, name: &'static str, need: Need) -> Option<Row<'a>> {
        let value = self.take(&[name], need, "an object")?;
        self.nested(name, value)
    }

    /// A list of nested objects. Empty when absent; members that are no objects are faults.
    pub(crate) fn objects(&mut self, name: &'static str, need: Need) -> Vec<Row<'a>> {
        let items = self.list(&[name], need, "a list of objects");
        items
            .into_iter()
            .flatten()
            .enumerate()
            .filter_map(|(index, item)| self.nested(&format!("{name}[{index}]"), item))
            .collect()
    }

    /// Fields that may be there and are not needed.
    pub(crate) fn skip(&mut self, names: &[&'static str]) {
        for name in names {
            self.take(&[name], Need::Optional, "");
        }
    }

    /// Whether a field is there and not yet taken.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields
            .iter()
            .any(|(key, value)| key == name && !value.is_null())
    }

    /// Reports the fields that nobody took.
    pub(crate) fn finish(self, unknown: Unknown) {
        for (key, value) in &self.fields {
            if self.findings.ignores(key) {
                continue;
            }
            match unknown {
                Unknown::Refuse => {
                    self.fault(key, value, format!("fields {}", self.known.join(", ")))
                }
                Unknown::Warn => self.findings.warn(
                    "unknown field",
                    Some(self.line),
                    format!("field {} is not known and not used", self.name(key)),
                ),
            }
        }
    }

    fn take(&mut self, names: &[&'static str], need: Need, allowed: &str) -> Option<Value> {
        self.known.extend(names);
        let mut found = None;
        let mut first: Option<String> = None;
        while let Some(at) = self
            .fields
            .iter()
            .position(|(key, _)| names.contains(&key.as_str()))
        {
            let (key, value) = self.fields.swap_remove(at);
            match &first {
                Some(first) if *first == key => self.fault(&key, "given twice", "once"),
                Some(first) => {
                    let allowed = format!("one of {}", names.join(", "));
                    self.fault(&key, format!("given beside {first}"), allowed);
                }
                None => first = Some(key),
            }
            found = Some(value);
        }
        let value = found.filter(|value| !value.is_null());
        if value.is_none() && need == Need::Required {
            self.fault(names[0], "missing", allowed);
        }
        value
    }

    fn list(&mut self, names: &[&'static str], need: Need, allowed: &str) -> Option<Vec<Value>> {
        match self.take(names, need, allowed)? {
            Value::Array(items) => Some(items),
            other => self.checked(names, &other, None, allowed),
        }
    }

    fn nested(&self, name: &str, value: Value) -> Option<Row<'a>> {
        let Value::Object(map) = value else {
            self.fault(name, value, "an object");
            return None;
        };
        Some(Row {
            findings: self.findings,
            line: self.line,
            path: format!("{}{name}.", self.path),
            fields: map.into_iter().collect(),
            known: Vec::new(),
        })
    }

    fn checked<T>(
        &self,
        names: &[&'static str],
        value: &Value,
        checked: Option<T>,
        allowed: &str,
    ) -> Option<T> {
        if checked.is_none() {
            self.fault(names[0], value, allowed);
        }
        checked
    }
}

/// The pairs of an object in their order; a map would keep only the last of two equal keys.
pub(crate) struct Fields(pub(crate) Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    fields.push(pair);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str, read: impl FnOnce(&mut Row<'_>)) -> Vec<String> {
        let findings = Findings::new("t".into(), vec!["note".into()]);
        if let Some(mut row) = Row::parse(&findings, 1, text.as_bytes()) {
            read(&mut row);
            row.finish(Unknown::Refuse);
        }
        match findings.check() {
            Ok(()) => Vec::new(),
            Err(list) => list.faults.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_misspelt_key_is_refused_with_the_names_that_are_known() {
        let found = faults(r#"{"outptu":3}"#, |row| {
            row.count(&["output", "out"], Need::Optional, 1..=9);
        });
        assert_eq!(found, ["t:1: outptu is 3; allowed: fields output, out"]);
    }

    #[test]
    fn a_field_and_its_alias_together_are_refused() {
        let found = faults(r#"{"output":3,"out":4}"#, |row| {
            row.count(&["output", "out"], Need::Optional, 1..=9);
        });
        assert_eq!(
            found,
            ["t:1: out is given beside output; allowed: one of output, out"]
        );
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        let found = faults(r#"{"t":3,"t":4}"#, |row| {
            row.time(&["t"], Need::Required);
        });
        assert_eq!(found, ["t:1: t is given twice; allowed: once"]);
    }

    #[test]
    fn numbers_outside_their_range_are_refused_with_their_value() {
        let found = faults(r#"{"a":-1,"b":1.5,"c":4294967296,"d":-0.5}"#, |row| {
            row.count(&["a"], Need::Required, 0..=u32::MAX);
            row.count(&["b"], Need::Required, 0..=u32::MAX);
            row.count(&["c"], Need::Required, 0..=u32::MAX);
            row.time(&["d"], Need::Required);
        });
        assert_eq!(found.len(), 4);
        assert!(found[0].starts_with("t:1: a is -1;"));
        assert!(found[1].starts_with("t:1: b is 1.5;"));
        assert!(found[2].starts_with("t:1: c is 4294967296;"));
        assert_eq!(found[3], "t:1: d is -0.5; allowed: a number from 0 to 1e13");
    }

    #[test]
    fn the_member_of_a_list_that_is_wrong_is_named() {
        let found = faults(r#"{"hash_ids":[1,"x"]}"#, |row| {
            row.ids(&["hash_ids"], Need::Required);
        });
        assert_eq!(
            found,
            [r#"t:1: hash_ids[1] is "x"; allowed: an integer, at least 0"#]
        );
    }

    #[test]
    fn an_ignored_field_and_a_null_are_as_if_absent() {
        let found = faults(r#"{"note":1,"a":null}"#, |row| {
            assert_eq!(row.count(&["a"], Need::Optional, 1..=9), None);
        });
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_block_id_of_64_bits_keeps_all_its_digits() {
        faults(
            r#"{"ids":[18446744073709551615,9007199254740993]}"#,
            |row| {
                let ids = row.ids(&["ids"], Need::Required);
                assert_eq!(ids, Some(vec![u64::MAX, 9_007_199_254_740_993]));
            },
        );
    }
}
