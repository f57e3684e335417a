//! Small files that are written as a whole.

use std::io;

use disk::{AlignedBuffer, Disk};

use super::STORING;
use crate::format::{Fields, SECTOR, sectors};

/// Writes a file so that it has its name only once it is complete and synced. `content` is whole sectors.
pub(crate) fn write_file(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
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

/// A list of entries as the content of a file: their number u32, their CRC-32C u32, and the entries, in whole sectors.
pub(crate) fn encode_list<const N: usize>(entries: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    let listed: Vec<u8> = entries.flatten().collect();
    let mut out = Vec::with_capacity(sectors(8 + listed.len()));
    out.extend(u32::try_from(listed.len() / N).expect("a small file").to_le_bytes());
    out.extend(model::crc32c(&listed).to_le_bytes());
    out.extend(listed);
    out.resize(sectors(out.len()), 0);
    out
}

/// The entries of a file with the content of [`encode_list`]. None if there is no file. A list is never empty: the checksum of
/// nothing is that of a file which was never written.
pub(crate) fn read_list<const N: usize>(disk: &dyn Disk, name: &str) -> io::Result<Vec<[u8; N]>> {
    if !disk.list()?.iter().any(|there| there == name) {
        return Ok(Vec::new());
    }
    let file = disk.open(name)?;
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, format!("the file `{name}` is damaged"));
    let length =
        usize::try_from(file.length()).ok().filter(|length| *length >= SECTOR).ok_or_else(damaged)?;
    let mut bytes = AlignedBuffer::zeroed(length);
    file.read_at(0, &mut bytes)?;
    let mut fields = Fields(&bytes[..8]);
    let (count, crc) = (usize::try_from(fields.u32()).unwrap_or(usize::MAX), fields.u32());
    let listed = count.checked_mul(N).and_then(|taken| bytes.get(8..8 + taken));
    let listed = listed.filter(|listed| count > 0 && model::crc32c(listed) == crc).ok_or_else(damaged)?;
    Ok(listed.as_chunks::<N>().0.to_vec())
}
