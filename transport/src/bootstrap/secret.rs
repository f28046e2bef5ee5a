//! The job secret and the keys made of it.

use std::fmt::Write as _;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The shortest secret, in bytes.
pub const SECRET_MIN_BYTES: usize = 16;

const SECRET_MAX_BYTES: u64 = 4096;

/// Bytes of an HMAC-SHA256 tag.
pub(crate) const TAG_BYTES: usize = 32;

/// What the processes of a job share and strangers do not know. It is given by the environment or
/// by a file, never on a command line, and nothing prints it.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// It is too short to be one.
    #[error(
        "a job secret has at least {SECRET_MIN_BYTES} bytes (as text, or twice as many hex digits), this one has {bytes}"
    )]
    Short {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It is longer than any secret.
    #[error("{path} is longer than {SECRET_MAX_BYTES} bytes: is it the right file?")]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Others than the owner can read the file.
    #[error("{path} has mode {mode:03o}, so others can read it: chmod 600 {path}")]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random(#[from] getrandom::Error),
}

impl Secret {
    /// A fresh one of 32 random bytes.
    ///
    /// # Errors
    /// [`SecretError::Random`] if the system gives no random numbers.
    pub fn generate() -> Result<Self, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The secret that `text` gives: at least 32 hex digits (an even number) are the bytes they
    /// name, any other text is taken as it is; white space around it does not count.
    ///
    /// # Errors
    /// [`SecretError::Short`] if it has less than 16 bytes.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        Self::from_bytes(text.trim_ascii().as_bytes())
    }

    /// The secret in a file that only its owner can read, by the rule of [`Secret::from_text`].
    ///
    /// # Errors
    /// If the file cannot be read, is readable by others, or holds no usable secret.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let failed = |source| SecretError::File { path: path.into(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        // The open file is looked at, not the path: nobody can swap it in between.
        let mode = file.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Readable { path: path.into(), mode });
        }
        let mut bytes = Vec::new();
        file.take(SECRET_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > SECRET_MAX_BYTES {
            return Err(SecretError::Long { path: path.into() });
        }
        Self::from_bytes(bytes.trim_ascii())
    }

    /// The secret as hex digits, for the environment of a child process.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(2 * self.0.len()), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// A key for one purpose: `label` names it, `context` binds it to one job.
    pub(crate) fn derive(&self, label: &str, context: &[u8]) -> Key {
        let tag = tag(&self.0, &[b"verbcast key ", label.as_bytes(), b"\0", context]);
        Key(tag.finalize().into_bytes().into())
    }

    fn from_bytes(text: &[u8]) -> Result<Self, SecretError> {
        let bytes = decode_hex(text).unwrap_or_else(|| text.to_vec());
        if bytes.len() < SECRET_MIN_BYTES {
            return Err(SecretError::Short { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Both processes of a connection have the same one if they belong to one job.
#[derive(Clone)]
pub(crate) struct Key([u8; TAG_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The tag of `parts`, one after the other.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_BYTES] {
        tag(&self.0, parts).finalize().into_bytes().into()
    }

    /// Whether `claimed` is the tag of `parts`; takes the same time whatever the answer.
    pub(crate) fn verify(&self, parts: &[&[u8]], claimed: &[u8; TAG_BYTES]) -> bool {
        tag(&self.0, parts).verify_slice(claimed).is_ok()
    }
}

fn tag(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC takes a key of any length (RFC 2104, section 2), so this cannot fail.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

fn decode_hex(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() < 2 * SECRET_MIN_BYTES || !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2)
        .map(|pair| match (char::from(pair[0]).to_digit(16), char::from(pair[1]).to_digit(16)) {
            (Some(high), Some(low)) => Some((high << 4 | low) as u8),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn hex_and_text_are_told_apart() {
        let hex = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(&*Secret::from_text(hex).unwrap().0, (0..16).collect::<Vec<u8>>());
        assert_eq!(Secret::from_text(hex).unwrap().to_hex(), hex);
        let text = "sixteen bytes ok";
        assert_eq!(&*Secret::from_text(&format!(" {text}\n")).unwrap().0, text.as_bytes());
        let error = Secret::from_text("fifteen bytes..").unwrap_err();
        assert!(matches!(error, SecretError::Short { bytes: 15 }), "{error}");
    }

    #[test]
    fn generated_secrets_differ_and_survive_the_environment() {
        let (a, b) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(a.0, b.0);
        assert_eq!(Secret::from_text(&a.to_hex()).unwrap().0, a.0);
        assert_eq!(format!("{a:?}"), "Secret(..)");
    }

    #[test]
    fn tags_are_hmac_sha256() {
        // RFC 4231, test case 2.
        let tag = tag(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        let expected =
            decode_hex(b"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(tag.finalize().into_bytes().to_vec(), expected.unwrap());
    }

    #[test]
    fn keys_depend_on_label_and_context() {
        let secret = Secret::from_text("sixteen bytes ok").unwrap();
        let tag = |label, context: &[u8]| secret.derive(label, context).tag(&[b"x"]);
        assert_eq!(tag("a", b"1"), tag("a", b"1"));
        assert_ne!(tag("a", b"1"), tag("b", b"1"));
        assert_ne!(tag("a", b"1"), tag("a", b"2"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let name = format!("verbcast-secret-{}-{}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "sixteen bytes ok\n").unwrap();
        let read_with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Secret::from_file(&path)
        };
        for mode in [0o644, 0o640, 0o604] {
            let message = read_with(mode).unwrap_err().to_string();
            assert!(message.contains("chmod 600"), "{message}");
        }
        assert_eq!(&*read_with(0o600).unwrap().0, b"sixteen bytes ok");
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert!(matches!(read_with(0o600), Err(SecretError::Long { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Secret::from_file(&path), Err(SecretError::File { .. })));
    }
}
