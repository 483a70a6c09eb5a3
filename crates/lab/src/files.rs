// SPDX-License-Identifier: Apache-2.0

//! Writing files that a reader never sees half of: beside their place, then moved.

use std::io;
use std::path::Path;

/// Write `text` to `name` in `folder`.
///
/// # Errors
/// Of the file system.
pub(crate) fn write_whole(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Results are there to be read by others, unlike most temporary files. Less the umask, as any.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder)?;
    std::fs::write(file.path(), text)?;
    file.persist(folder.join(name))?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_file_may_be_read_like_any_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("plain"), "a").unwrap();
        write_whole(folder.path(), "moved", "a").unwrap();
        let mode = |name| {
            let metadata = std::fs::metadata(folder.path().join(name)).unwrap();
            metadata.permissions().mode()
        };
        assert_eq!(mode("moved"), mode("plain"));
    }
}
