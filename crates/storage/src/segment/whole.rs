//! Small files that are written as a whole.

use disk::{AlignedBuffer, Disk};

use super::STORING;

/// Writes a file so that it has its name only once it is complete and synced. `content` is whole sectors.
pub(crate) fn write_file(disk: &dyn Disk, name: &str, content: &[u8]) -> std::io::Result<()> {
    if disk.list()?.iter().any(|name| name == STORING) {
        disk.remove(STORING)?;
    }
    let mut bytes = AlignedBuffer::zeroed(content.len());
    bytes.copy_from_slice(content);
    let file = disk.create(STORING, content.len() as u64)?;
    file.write_at(0, &bytes)?;
    file.sync()?;
    disk.rename(STORING, name)
}
