//! The id of the cluster, which is given or generated once, and never changes.

use meta::{Change, Compare, MetaError, Store};
use wire::Text;

use super::OpenError;

const CLUSTER_ID_KEY: &str = "cluster_id";
/// Letters of a generated id, as Kafka's have.
const GENERATED_LETTERS: usize = 22;

/// The cluster's id. A new store gets `wanted`, or a generated one if that is empty. A store with another id is refused.
pub fn cluster_id(store: &dyn Store, wanted: Option<&str>) -> Result<Text, OpenError> {
    loop {
        if let Some(found) = store.find(CLUSTER_ID_KEY)? {
            let found = String::from_utf8_lossy(&found.bytes).into_owned();
            return match wanted {
                Some(wanted) if wanted != found => {
                    Err(OpenError::OtherCluster { wanted: wanted.to_owned(), found })
                }
                _ => Ok(Text::from(found)),
            };
        }
        let id = wanted.map_or_else(generated, str::to_owned);
        match store.commit(&[Compare::absent(CLUSTER_ID_KEY)], &[Change::put(CLUSTER_ID_KEY, id.clone())]) {
            Ok(_) => return Ok(Text::from(id)),
            // Another broker was faster.
            Err(MetaError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn generated() -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let random = uuid::Uuid::new_v4().as_u128();
    let letter = |n: usize| char::from(LETTERS[usize::try_from(random >> (6 * n) & 63).expect("below 64")]);
    (0..GENERATED_LETTERS).map(|n| if n == GENERATED_LETTERS - 1 { 'A' } else { letter(n) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_given_once_and_another_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = |name: &str| meta::Embedded::open(&directory.path().join(name)).unwrap();
        let (given, random) = (store("given"), store("random"));
        assert_eq!(cluster_id(&given, Some("MkU3OEVBNTcwNTJENDM2Qk")).unwrap(), "MkU3OEVBNTcwNTJENDM2Qk");
        for wanted in [None, Some("MkU3OEVBNTcwNTJENDM2Qk")] {
            assert_eq!(cluster_id(&given, wanted).unwrap(), "MkU3OEVBNTcwNTJENDM2Qk");
        }
        let refused = cluster_id(&given, Some("other")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the data is of the cluster MkU3OEVBNTcwNTJENDM2Qk, and cluster.id is other: name that one, none, or another directory"
        );
        let id = cluster_id(&random, None).unwrap();
        assert_eq!((id.len(), cluster_id(&random, None).unwrap()), (GENERATED_LETTERS, id.clone()));
    }
}
