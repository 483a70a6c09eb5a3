// SPDX-License-Identifier: Apache-2.0

//! A generated model that needs no download.
//!
//! The word `wN` is token N and words are split at blanks, so a prompt of 64 words is exactly 64 tokens and tests control
//! prefix sharing word by word. The mock engine emits ids from 1000 to 1999, so the vocabulary has to reach 2000; 4096
//! words leave room for prompts that share nothing.
//!
//! The path of a model is part of Dynamo's checksum of it: workers that disagree on the path are refused as another
//! configuration of the same model. So all processes of a user share one folder, in the user's cache.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};

/// Words in the vocabulary.
pub const VOCABULARY: u32 = 4096;
/// Longest context in tokens.
pub const CONTEXT_TOKENS: u32 = 131_072;

/// The folder of the model, written when it is not there yet.
///
/// # Errors
/// When neither the user's cache folder nor the temporary folder can be written.
pub fn generated() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or(home);
    match cache
        .filter(|folder| folder.is_absolute())
        .map(|folder| generated_in(&folder))
    {
        Some(Ok(folder)) => Ok(folder),
        // A container's home folder may be read-only.
        Some(Err(_)) | None => generated_in(&std::env::temp_dir()),
    }
}

/// The model below `parent`, in a folder that is named after its content: it is either absent or complete and right.
fn generated_in(parent: &Path) -> anyhow::Result<PathBuf> {
    let files = [
        ("tokenizer.json", tokenizer().to_string()),
        ("config.json", config().to_string()),
        ("tokenizer_config.json", tokenizer_config().to_string()),
    ];
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let parent = parent.join("regime-router");
    let folder = parent.join(format!("mock-model-{:016x}", hasher.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    let context = || format!("writing the mock model to {}", folder.display());
    std::fs::create_dir_all(&parent).with_context(context)?;
    let draft = tempfile::tempdir_in(&parent).with_context(context)?;
    for (name, content) in &files {
        std::fs::write(draft.path().join(name), content).with_context(context)?;
    }
    match std::fs::rename(draft.path(), &folder) {
        // Another process was faster with the same content.
        Err(_) if folder.is_dir() => {}
        renamed => renamed.with_context(context)?,
    }
    Ok(folder)
}

fn tokenizer() -> Value {
    let special = ["<unk>", "<s>", "</s>"];
    let word = |id: u32| {
        special
            .get(id as usize)
            .map_or_else(|| format!("w{id}"), ToString::to_string)
    };
    let vocabulary: serde_json::Map<String, Value> =
        (0..VOCABULARY).map(|id| (word(id), json!(id))).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null,
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
    })
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    })
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
        "model_max_length": CONTEXT_TOKENS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_w_n_is_token_n() {
        let parent = tempfile::tempdir().unwrap();
        let path = generated_in(parent.path()).unwrap().join("tokenizer.json");
        let tokenizer: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let vocabulary = &tokenizer["model"]["vocab"];
        assert_eq!(vocabulary.as_object().unwrap().len(), 4096);
        assert_eq!(vocabulary["w1999"], 1999);
        assert_eq!(vocabulary["w4095"], 4095);
        assert_eq!(vocabulary["</s>"], 2);
    }

    #[test]
    fn everybody_gets_the_same_folder() {
        let parent = tempfile::tempdir().unwrap();
        let first = generated_in(parent.path()).unwrap();
        assert_eq!(generated_in(parent.path()).unwrap(), first);
        let entries = std::fs::read_dir(parent.path().join("regime-router"))
            .unwrap()
            .count();
        assert_eq!(entries, 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = generated_in(file.path()).unwrap_err().to_string();
        assert!(
            error.contains(&file.path().display().to_string()),
            "{error}"
        );
    }
}
