//! Lists of any length, page by page.

use std::time::Duration;

use crate::{Bucket, BucketError, Listed, patiently};

/// Objects that one request lists.
const PAGE: usize = 1000;

/// All objects whose keys begin with `prefix` and come after `after`, in the order of their keys. `wait` is as in
/// [`patiently`].
pub fn list_all(
    bucket: &dyn Bucket,
    prefix: &str,
    after: &str,
    mut wait: impl FnMut(Duration, &BucketError) -> bool,
) -> Result<Vec<Listed>, BucketError> {
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let last = all.last().map_or(after, |last| last.key.as_str()).to_owned();
        let page = patiently(|| bucket.list(prefix, &last, PAGE), &mut wait)?;
        // A store may end a page early, so only an empty page is the last one.
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimBucket;
    use crate::sim::Faults;

    #[test]
    fn a_long_list_is_whole_and_in_order() {
        let bucket = SimBucket::new(1);
        for number in 0..2500 {
            bucket.put_if_absent(&format!("a/{number:04}"), &[]).unwrap();
        }
        bucket.put_if_absent("b/1", &[]).unwrap();
        bucket.set_faults(Faults::MANY);
        let listed = list_all(&bucket, "a/", "a/0099", |_, _| true).unwrap();
        let keys: Vec<String> = listed.into_iter().map(|listed| listed.key).collect();
        assert_eq!(keys, (100..2500).map(|number| format!("a/{number:04}")).collect::<Vec<_>>());
    }
}
