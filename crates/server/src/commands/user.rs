//! `mainstem user`: create, list, delete; through a server, or in the data directory of a stopped server.
//!
//! The password is never an argument, because every process of the machine could read it. Only the SCRAM credential
//! leaves this process.

use std::io::Read;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, bail};
use broker::users::{ITERATIONS, Users};
use client::check;
use sasl::scram::{Credential, Hash, random_salt, salted_password};
use serde_json::json;
use wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use wire::messages::describe_user_scram_credentials_request::UserName;
use wire::messages::{AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest};
use wire::{ErrorCode, Text};

use super::cluster::Cluster;
use super::{Table, connect, show};
use crate::arguments::{Bootstrap, MechanismChoice, UserVerb};
use crate::log_dirs;

/// The environment variable for a password that is not in a file.
const VARIABLE: &str = "MAINSTEM_PASSWORD";
/// A longer password is a mistake, perhaps a whole file.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Runs the command.
pub fn user(bootstrap: &Bootstrap, data_dir: Option<&Path>, verb: UserVerb) -> anyhow::Result<()> {
    // The password is read first, so that an invalid one does not leave a directory behind.
    let password = match &verb {
        UserVerb::Create { password_file, .. } => Some(read_password(password_file.as_deref())?),
        UserVerb::List | UserVerb::Delete { .. } => None,
    };
    let mut place = match data_dir {
        Some(directory) => Place::stopped(directory, matches!(verb, UserVerb::Create { .. }))?,
        None => Place::Server(Box::new(connect(bootstrap)?)),
    };
    match verb {
        UserVerb::Create { name, mechanisms, iterations, .. } => {
            let password = password.unwrap_or_default();
            if name.is_empty() {
                bail!("a user has to have a name");
            }
            let iterations = iterations.and_then(NonZeroU32::new).unwrap_or(ITERATIONS);
            for hash in chosen(&mechanisms) {
                place.put(&name, hash, &password, iterations)?;
            }
            show(bootstrap.shown.output, || format!("{name} can log in\n"), || json!({"created": name}))
        }
        UserVerb::List => {
            let mut table = Table::new(&["USER", "MECHANISM", "ITERATIONS"]);
            for (name, hash, iterations) in place.all(None)? {
                table.row([name, hash.mechanism().into(), iterations.to_string()]);
            }
            show(bootstrap.shown.output, || table.to_text(), || table.to_json())
        }
        UserVerb::Delete { name, mechanisms } => {
            let all = place.all(Some(&name))?;
            let chosen = chosen(&mechanisms);
            let found: Vec<Hash> =
                all.iter().map(|(_, hash, _)| *hash).filter(|hash| chosen.contains(hash)).collect();
            if found.is_empty() {
                bail!("there is no user {name}, or none with that mechanism");
            }
            for hash in &found {
                place.delete(&name, *hash)?;
            }
            let left = all.len() - found.len();
            let can = if left > 0 { " still" } else { " no longer" };
            show(
                bootstrap.shown.output,
                || format!("{name} can{can} log in\n"),
                || json!({"deleted": name, "mechanisms_left": left}),
            )
        }
    }
}

fn chosen(mechanisms: &[MechanismChoice]) -> Vec<Hash> {
    let all = Hash::ALL.into_iter();
    all.filter(|hash| mechanisms.is_empty() || mechanisms.iter().any(|choice| choice.hash() == *hash))
        .collect()
}

/// Reads the password from a file (`-` for standard input), or else from the environment. A final line end is removed.
fn read_password(file: Option<&Path>) -> anyhow::Result<String> {
    let mut text = String::new();
    match file {
        Some(file) if file == Path::new("-") => {
            std::io::stdin()
                .take(PASSWORD_BYTES_MAX + 1)
                .read_to_string(&mut text)
                .context("standard input")?;
        }
        Some(file) => {
            let shown = || format!("the password file {}", file.display());
            let file = std::fs::File::open(file).with_context(shown)?;
            file.take(PASSWORD_BYTES_MAX + 1).read_to_string(&mut text).with_context(shown)?;
        }
        None => {
            text = std::env::var(VARIABLE).ok().with_context(|| {
                format!("there is no password: give it by --password-file FILE (- for standard input) or {VARIABLE}")
            })?;
        }
    }
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        bail!("the password is empty");
    }
    if text.len() as u64 > PASSWORD_BYTES_MAX {
        bail!("the password is longer than {PASSWORD_BYTES_MAX} bytes");
    }
    if password.contains(['\0', '\n']) {
        bail!("the password has more than one line, or a zero byte, which PLAIN cannot send");
    }
    Ok(password.to_owned())
}

/// The place where users are stored.
enum Place {
    Server(Box<Cluster>),
    /// The lock keeps a server from starting in the meantime.
    Stopped(Users, #[allow(dead_code)] disk::DirectoryLock),
}

impl Place {
    fn stopped(directory: &Path, create: bool) -> anyhow::Result<Place> {
        let shown = directory.display();
        if create {
            log_dirs::create(directory).with_context(|| format!("{shown} cannot be created"))?;
        } else if !directory.is_dir() {
            bail!("there is no directory {shown}");
        }
        log_dirs::check_restored(directory)?;
        if !create && !broker::has_metadata(directory) {
            // Opening would create it. A server refuses a log beside metadata that does not know it.
            bail!("there is no metadata in {shown}, so there are no users");
        }
        let lock = disk::lock_directory(directory).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                anyhow::anyhow!("{}: use --bootstrap", log_dirs::in_use("data directory", directory))
            }
            _ => anyhow::Error::new(error).context(format!("{shown} cannot be locked")),
        })?;
        let users = Users::of_directory(directory).with_context(|| format!("the metadata in {shown}"))?;
        Ok(Place::Stopped(users, lock))
    }

    /// Name, mechanism and iterations of each credential, of one user or of all users.
    fn all(&mut self, of: Option<&str>) -> anyhow::Result<Vec<(String, Hash, u32)>> {
        let mut all = Vec::new();
        match self {
            Place::Stopped(users, _) => {
                let users = users.all();
                for (name, credentials) in users.iter().filter(|(name, _)| of.is_none_or(|of| of == *name)) {
                    all.extend(
                        credentials.iter().map(|(hash, found)| (name.clone(), hash, found.iterations.get())),
                    );
                }
            }
            Place::Server(cluster) => {
                let users = of.map(|name| vec![UserName { name: Text::copied(name) }]);
                let request = DescribeUserScramCredentialsRequest { users };
                let answer = cluster.any()?.call(&request)?;
                check(answer.error_code, answer.error_message.as_ref())?;
                for user in answer.results {
                    if of.is_some() && user.error_code == ErrorCode::ResourceNotFound.code() {
                        continue;
                    }
                    check(user.error_code, user.error_message.as_ref())?;
                    for info in user.credential_infos {
                        let hash = Hash::ALL.into_iter().find(|hash| code_of(*hash) == info.mechanism);
                        let iterations = u32::try_from(info.iterations).unwrap_or(0);
                        all.extend(hash.map(|hash| (user.user.to_string(), hash, iterations)));
                    }
                }
            }
        }
        all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        Ok(all)
    }

    fn put(&mut self, name: &str, hash: Hash, password: &str, iterations: NonZeroU32) -> anyhow::Result<()> {
        let salt = random_salt().context("the system has no random numbers")?;
        match self {
            Place::Stopped(users, _) => {
                let credential = Credential::new(hash, password, salt, iterations);
                let change = (name.to_owned(), hash, Some(credential));
                Ok(users.change(|_| ((), vec![change.clone()]))?)
            }
            Place::Server(cluster) => alter(
                cluster,
                AlterUserScramCredentialsRequest {
                    upsertions: vec![ScramCredentialUpsertion {
                        name: Text::copied(name),
                        mechanism: code_of(hash),
                        iterations: i32::try_from(iterations.get()).unwrap_or(i32::MAX),
                        salted_password: salted_password(hash, password, &salt, iterations).into(),
                        salt: salt.into(),
                    }],
                    ..Default::default()
                },
            ),
        }
    }

    fn delete(&mut self, name: &str, hash: Hash) -> anyhow::Result<()> {
        match self {
            Place::Stopped(users, _) => Ok(users.change(|_| ((), vec![(name.to_owned(), hash, None)]))?),
            Place::Server(cluster) => alter(
                cluster,
                AlterUserScramCredentialsRequest {
                    deletions: vec![ScramCredentialDeletion {
                        name: Text::copied(name),
                        mechanism: code_of(hash),
                    }],
                    ..Default::default()
                },
            ),
        }
    }
}

/// Sends one change per request, because a request may name a user only once.
fn alter(cluster: &mut Cluster, request: AlterUserScramCredentialsRequest) -> anyhow::Result<()> {
    for result in &cluster.controller()?.call(&request)?.results {
        check(result.error_code, result.error_message.as_ref())?;
    }
    Ok(())
}

/// Kafka's number of the mechanism.
fn code_of(hash: Hash) -> i8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha512 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_one_line_and_not_empty() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read_password(Some(&file)).map_err(|error| error.to_string())
        };
        assert_eq!(read("secret").unwrap(), "secret");
        assert_eq!(read("se cret \r\n").unwrap(), "se cret ");
        for wrong in ["", "\n", "\r\n", "a\nb", "a\0b", &"x".repeat(5000)] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
        assert!(read_password(Some(&directory.path().join("none"))).is_err());
    }
}
