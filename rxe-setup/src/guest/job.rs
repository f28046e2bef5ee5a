//! What one guest is to do, as the scripts that its init runs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, remove_folder};
use crate::error::{Error, Result};
use crate::guest::GuestOptions;
use crate::kernel::archive;
use crate::plan::{self, State};
use crate::run::quoted;

/// The guest's name.
const HOSTNAME: &str = "verbcast-guest";
/// What of our environment the command gets without being asked for.
const PASSED: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "CARGO_TARGET_DIR",
    "NO_COLOR",
];

/// A command to run in a guest.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// The working folder, of the host and of the guest.
    pub(crate) folder: PathBuf,
    /// What else of the host's /tmp the guest must see; for anything elsewhere it makes no difference.
    pub(crate) visible: Vec<PathBuf>,
    /// Environment on top of [`PASSED`].
    pub(crate) env: Vec<(String, String)>,
}

impl Job {
    /// The archive that is put behind the initramfs: the scripts `mounts`, `setup` and `command`,
    /// and `end`, the mark after the command's output.
    pub(crate) fn archive(
        &self,
        cache: &Cache,
        options: &GuestOptions,
        mark: &[u8],
    ) -> Result<Vec<u8>> {
        let setup = match options.cluster {
            None => String::new(),
            Some(cluster) => plan::script(&plan::up(cluster, &guest_state())?),
        };
        let tree = cache.own_folder("job");
        remove_folder(&tree)?;
        let folder = tree.join("job");
        fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
        let parts = [
            ("mounts", self.mounts(&options.shares).into_bytes()),
            ("setup", setup.into_bytes()),
            ("command", self.script().into_bytes()),
            ("end", mark.to_vec()),
        ];
        for (name, content) in parts {
            let path = folder.join(name);
            fs::write(&path, content).map_err(Error::file("write", &path))?;
        }
        let archive = archive(&tree);
        remove_folder(&tree)?;
        archive
    }

    /// Fresh folders over the host's, and the shared ones; /root is the root of the guest's files.
    fn mounts(&self, shares: &[PathBuf]) -> String {
        let mut script = format!(
            "hostname {HOSTNAME}\n\
             mkdir -p /root/run /root/tmp /root/etc\n\
             [ -e /root/etc/mtab ] || ln -s ../proc/self/mounts /root/etc/mtab\n\
             echo 127.0.1.1 {HOSTNAME} >>/root/etc/hosts\n\
             mount -t tmpfs tmpfs /root/run\n"
        );
        // What lies under /tmp would vanish under the fresh one.
        let kept: Vec<String> = [&self.folder]
            .into_iter()
            .chain(&self.visible)
            .filter(|path| path.starts_with("/tmp") && *path != Path::new("/tmp"))
            .map(|path| in_root(path))
            .collect();
        for (number, path) in kept.iter().enumerate() {
            script.push_str(&format!("keep {number} {path}\n"));
        }
        script.push_str("mount -t tmpfs -o mode=1777 tmpfs /root/tmp\n");
        for (number, path) in kept.iter().enumerate() {
            script.push_str(&format!("restore {number} {path}\n"));
        }
        for (number, share) in shares.iter().enumerate() {
            let place = in_root(share);
            script.push_str(&format!(
                "mkdir -p {place}\n\
                 mount -t 9p -o $options share{number} {place} || fail cannot mount {}\n",
                quoted(&share.to_string_lossy())
            ));
        }
        script
    }

    fn script(&self) -> String {
        let mut words = vec!["exec env -i".to_owned()];
        let inherited = PASSED.iter().filter_map(|name| Some((*name, env::var(name).ok()?)));
        words.extend(inherited.map(|(name, value)| format!("{name}={}", quoted(&value))));
        words.extend(self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value))));
        words.extend(self.command.iter().map(|word| quoted(word)));
        let folder = quoted(&self.folder.to_string_lossy());
        format!("cd {folder} || exit 125\n{}\n", words.join(" "))
    }
}

/// A guest that has loaded its modules and has no interface yet.
fn guest_state() -> State {
    State { modules: plan::MODULES.map(str::to_owned).into(), ..State::default() }
}

fn in_root(path: &Path) -> String {
    quoted(&format!("/root{}", path.display()))
}

/// The folder that is shared for writing where none is named: `CARGO_TARGET_DIR`, or `target` beside
/// the nearest Cargo.lock at or above `folder`. `None` if there is no such folder.
pub(crate) fn target_folder(folder: &Path) -> Option<PathBuf> {
    folder_of(folder, env::var_os("CARGO_TARGET_DIR"))
}

fn folder_of(folder: &Path, named: Option<OsString>) -> Option<PathBuf> {
    let target = match named {
        Some(target) => folder.join(target),
        None => folder.ancestors().find(|path| path.join("Cargo.lock").exists())?.join("target"),
    };
    target.canonicalize().ok().filter(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(folder: &str, command: &[&str]) -> Job {
        Job {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            folder: folder.into(),
            visible: Vec::new(),
            env: vec![("A".to_owned(), "it's".to_owned())],
        }
    }

    #[test]
    fn the_command_reaches_the_shell_word_for_word() {
        let script = job("/a b", &["printf", "%s|", "x y", "$HOME", ""]).script();
        assert!(script.starts_with("cd '/a b' || exit 125\nexec env -i "), "{script}");
        assert!(script.ends_with(" printf '%s|' 'x y' '$HOME' ''\n"), "{script}");
        assert!(script.contains(r" A='it'\''s' "), "{script}");
    }

    #[test]
    fn a_working_folder_and_named_files_under_tmp_are_kept() {
        let mut job = job("/tmp/x y", &["true"]);
        job.visible = vec!["/tmp/file".into(), "/home/file".into()];
        let mounts = job.mounts(&[]);
        let kept: Vec<_> = mounts
            .lines()
            .filter(|line| line.contains("keep") || line.contains("restore"))
            .collect();
        assert_eq!(
            kept,
            [
                "keep 0 '/root/tmp/x y'",
                "keep 1 /root/tmp/file",
                "restore 0 '/root/tmp/x y'",
                "restore 1 /root/tmp/file",
            ]
        );
        job.folder = "/tmp".into();
        job.visible.clear();
        assert!(!job.mounts(&[]).contains("keep"));
    }

    #[test]
    fn only_the_named_folders_are_shared() {
        let mounts = job("/", &["true"]).mounts(&["/a/target".into(), "/b".into()]);
        let shared: Vec<_> = mounts.lines().filter(|line| line.contains("-t 9p")).collect();
        assert_eq!(shared.len(), 2);
        assert!(shared[0].contains("share0 /root/a/target"));
        assert!(shared[1].contains("share1 /root/b"));
    }

    #[test]
    fn the_target_folder_is_found_beside_the_lock_file() {
        let root = crate::probe::tests::FakeRoot::new(&[]);
        let (inner, target) = (root.path().join("a/b"), root.path().join("target"));
        root.add("a/b/file", b"");
        root.add("target/file", b"");
        assert_eq!(folder_of(&inner, None), None);
        root.add("Cargo.lock", b"");
        let target = target.canonicalize().ok();
        assert!(target.is_some());
        assert_eq!(folder_of(&inner, None), target);
        assert_eq!(folder_of(&inner, Some("../../target".into())), target);
        assert_eq!(folder_of(&inner, Some("nowhere".into())), None);
        assert_eq!(folder_of(Path::new("/"), None), None);
    }
}
