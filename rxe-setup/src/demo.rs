//! The subcommand `demo`: a real file to local ranks, on the best fabric there is.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Demo, Purpose};
use crate::cargo::{cargo, executable, workspace_root};
use crate::deps;
use crate::error::{Error, Result};
use crate::guest::{self, GuestOptions, Job, Output, target_folder};
use crate::plan::Cluster;
use crate::run::{inherited, output, quoted};

const MIB: u64 = 1 << 20;
/// The file that is made where none is given.
const FILE_MIB: u64 = 256;
/// The same for an emulated guest, which moves some 10 MiB a second.
const GUEST_FILE_MIB: u64 = 8;
/// From power-on to the end of the demonstration in the guest.
const GUEST_LIMIT: Duration = Duration::from_secs(600);

/// Runs the demonstration.
///
/// # Errors
/// [`Error::Step`] if a copy differs, [`Error::Program`] if a build or the broadcast fails.
pub(crate) fn run(args: &Demo) -> Result<()> {
    let file = match &args.file {
        Some(file) => Some(file.canonicalize().map_err(Error::file("open", file))?),
        None => None,
    };
    deps::install(if args.soft_roce { Purpose::All } else { Purpose::Build }, false)?;
    let root = workspace_root()?;
    say!("building verbcast");
    let build = ["build", "--release", "--package", "verbcast", "--bin", "verbcast"];
    let verbcast = executable(&mut cargo(&root, &build), "bin", "verbcast")?;
    let folder = target_folder(&root)
        .ok_or_else(|| Error::Step("demo: the target folder is not there".to_owned()))?
        .join("demo");
    fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
    let file = match file {
        Some(file) => file,
        None => made_file(&folder, if args.soft_roce { GUEST_FILE_MIB } else { FILE_MIB })?,
    };
    let show = Show { verbcast, file, folder, ranks: args.ranks };
    if args.soft_roce { show.in_a_guest() } else { show.on_this_host() }
}

/// A demonstration that is ready to run.
struct Show {
    verbcast: PathBuf,
    file: PathBuf,
    folder: PathBuf,
    ranks: u32,
}

impl Show {
    fn on_this_host(&self) -> Result<()> {
        let bytes = self.bytes()?;
        let copies: Vec<_> = (0..self.ranks).map(|rank| self.copy(&self.folder, rank)).collect();
        copies.iter().for_each(|copy| drop(fs::remove_file(copy)));
        say!("broadcasting {} ({}) to {} ranks", self.file.display(), size(bytes), self.ranks);
        let ranks = self.ranks.to_string();
        let started = Instant::now();
        inherited(
            Command::new(&self.verbcast)
                .args(["launch", "-n", &ranks, "--"])
                .arg(&self.verbcast)
                .arg("broadcast")
                .arg(&self.file)
                .arg(self.folder.join("copy.{rank}")),
        )?;
        let took = started.elapsed();
        let wanted = checksum(&self.file)?;
        say!("{wanted}  {}", self.file.display());
        for copy in &copies {
            let found = checksum(copy)?;
            say!("{found}  {}", copy.display());
            if found != wanted {
                return Err(Error::Step(format!("demo: {} differs", copy.display())));
            }
        }
        say!("all {ranks} copies are identical to the file");
        say!("{}", speed(bytes, self.ranks, took));
        let plain = self.plain_copies(&copies)?;
        copies.iter().for_each(|copy| drop(fs::remove_file(copy)));
        say!("{}", limit(took, plain, self.ranks, cores()));
        Ok(())
    }

    /// The time that this host takes for as many plain copies, written and synced at once.
    fn plain_copies(&self, copies: &[PathBuf]) -> Result<Duration> {
        let started = Instant::now();
        let copy = |to: &PathBuf| -> Result<()> {
            fs::remove_file(to).map_err(Error::file("remove", to))?;
            let mut from = File::open(&self.file).map_err(Error::file("open", &self.file))?;
            let mut file = File::create(to).map_err(Error::file("make", to))?;
            let mut buffer = vec![0_u8; 1 << 20];
            loop {
                // Read and write, as verbcast must, where a file system could clone.
                let read = from.read(&mut buffer).map_err(Error::file("read", &self.file))?;
                if read == 0 {
                    break;
                }
                file.write_all(&buffer[..read]).map_err(Error::file("write", to))?;
            }
            file.sync_all().map_err(Error::file("sync", to))
        };
        thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = copies.iter().map(|to| scope.spawn(move || copy(to))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::Step("demo: a copy failed".to_owned())))
            })
        })?;
        Ok(started.elapsed())
    }

    fn in_a_guest(&self) -> Result<()> {
        let bytes = self.bytes()?;
        say!(
            "broadcasting {} ({}) to {} ranks, each on a Soft-RoCE device of its own in a guest",
            self.file.display(),
            size(bytes),
            self.ranks
        );
        let job = Job {
            command: vec!["sh".to_owned(), "-c".to_owned(), self.guest_script()],
            folder: self.folder.clone(),
            visible: vec![self.file.clone()],
            env: Vec::new(),
        };
        // The guest holds every copy in its memory.
        let copies_mib = bytes.saturating_mul(u64::from(self.ranks)) / MIB;
        let options = GuestOptions {
            memory_mib: u32::try_from(copies_mib * 3 + 2048).unwrap_or(u32::MAX),
            cpus: 2,
            limit: GUEST_LIMIT,
            cluster: Some(Cluster::Nodes(self.ranks)),
            shares: Vec::new(),
            show_console: false,
        };
        let status = guest::run(&options, &job, Output::inherited())?;
        if status != 0 {
            return Err(Error::Step(format!("demo: the guest ended with status {status}")));
        }
        say!("all {} copies are identical to the file", self.ranks);
        say!(
            "limited by the processor: Soft-RoCE makes and checks every packet in the kernel, and \
             without KVM the guest's processor is emulated; an adapter does neither"
        );
        Ok(())
    }

    /// Broadcasts, shows the time, and compares the checksums.
    fn guest_script(&self) -> String {
        let verbcast = quoted(&self.verbcast.to_string_lossy());
        let file = quoted(&self.file.to_string_lossy());
        let ranks = self.ranks;
        let rank = r#"'VERBCAST_DEVICE=rxe$VERBCAST_RANK exec "$0" broadcast "$1" "$2"'"#;
        format!(
            "set -e\n\
             cat {file} >/dev/null\n\
             before=$(date +%s%N)\n\
             {verbcast} launch -n {ranks} --fabric verbs -- \
             sh -c {rank} {verbcast} {file} \"${{TMPDIR:-/tmp}}/copy.{{rank}}\"\n\
             after=$(date +%s%N)\n\
             ms=$(((after - before) / 1000000))\n\
             bytes=$(stat -c %s {file})\n\
             sum=$(sha256sum <{file})\n\
             echo \"${{sum%% *}}  file\"\n\
             rank=0\n\
             while [ $rank -lt {ranks} ]; do\n\
             found=$(sha256sum <\"${{TMPDIR:-/tmp}}/copy.$rank\")\n\
             echo \"${{found%% *}}  copy.$rank\"\n\
             [ \"$found\" = \"$sum\" ] || {{ echo \"copy.$rank differs\" >&2; exit 1; }}\n\
             rank=$((rank + 1))\n\
             done\n\
             echo \"$bytes bytes to each of {ranks} ranks in $ms ms, start and end of the \
             processes included: $((bytes * 1000 / (ms + 1))) bytes/s per rank\"\n"
        )
    }

    fn bytes(&self) -> Result<u64> {
        let data = fs::metadata(&self.file).map_err(Error::file("open", &self.file))?;
        Ok(data.len())
    }

    fn copy(&self, folder: &Path, rank: u32) -> PathBuf {
        folder.join(format!("copy.{rank}"))
    }
}

/// A file of pseudo-random bytes, kept for the next time.
fn made_file(folder: &Path, mib: u64) -> Result<PathBuf> {
    let path = folder.join(format!("random-{mib}-MiB"));
    if fs::metadata(&path).is_ok_and(|data| data.len() == mib * MIB) {
        return Ok(path);
    }
    say!("making {} of {mib} MiB", path.display());
    let file = File::create(&path).map_err(Error::file("make", &path))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut state = mib;
    for _ in 0..mib * MIB / 8 {
        file.write_all(&splitmix64(&mut state).to_le_bytes())
            .map_err(Error::file("write", &path))?;
    }
    file.flush().map_err(Error::file("write", &path))?;
    Ok(path)
}

/// Sebastiano Vigna's SplitMix64 (public domain): the next number from a state.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The SHA-256 of a file, computed by another program than the one that is shown.
fn checksum(path: &Path) -> Result<String> {
    let text = output("sha256sum", &["--", &path.to_string_lossy()])?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn size(bytes: u64) -> String {
    if bytes >= MIB {
        format!("{:.1} MiB", bytes as f64 / MIB as f64)
    } else {
        format!("{bytes} bytes")
    }
}

fn speed(bytes: u64, ranks: u32, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let per_second = bytes as f64 / seconds;
    format!(
        "{} to each of {ranks} ranks in {seconds:.3} s, from start to the last file in its place: \
         {per_second:.0} bytes/s ({:.1} MiB/s) per rank",
        size(bytes),
        per_second / MIB as f64
    )
}

/// What limits it, judged by the time that plain copies to the same places take.
fn limit(took: Duration, plain: Duration, ranks: u32, cores: usize) -> String {
    let ratio = took.as_secs_f64() / plain.as_secs_f64().max(1e-9);
    let because = if ratio < 1.5 {
        "limited by the file system: writing and syncing the copies is most of it".to_owned()
    } else if ranks as usize > cores {
        format!("limited by the processors: {ranks} ranks share {cores}")
    } else {
        "limited by memory copies, checksums and the start of the processes".to_owned()
    };
    format!(
        "{because} (as many plain copies, written and synced at once: {:.3} s, ratio {ratio:.2})",
        plain.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::tests::FakeRoot;

    #[test]
    fn the_random_numbers_are_those_of_the_published_generator() {
        let mut state = 1_234_567;
        let numbers: Vec<u64> = (0..3).map(|_| splitmix64(&mut state)).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn the_limit_is_judged_by_the_ratio() {
        let second = Duration::from_secs(1);
        assert!(limit(second, second, 4, 2).starts_with("limited by the file system"));
        assert!(limit(second * 4, second, 4, 2).starts_with("limited by the processors: 4 ranks"));
        assert!(limit(second * 4, second, 2, 2).starts_with("limited by memory copies"));
    }

    /// A stand-in for the binary that copies with `cp`, and tears the copy of the rank `torn`.
    fn stand_in(root: &FakeRoot, torn: &str) -> Show {
        let script = format!(
            r#"#!/bin/sh
            if [ "$1" = launch ]; then
                ranks=$3
                while [ "$1" != -- ]; do shift; done; shift
                rank=0
                while [ $rank -lt $ranks ]; do
                    VERBCAST_RANK=$rank "$@" || exit 1
                    rank=$((rank + 1))
                done
                exit
            fi
            to="${{3%{{rank\}}}}$VERBCAST_RANK"
            cp "$2" "$to"
            echo "${{VERBCAST_DEVICE:-none}}" >>"$2.devices"
            [ "$VERBCAST_RANK" != {torn} ] || printf x | dd of="$to" seek=1 bs=1 conv=notrunc 2>&1
            "#
        );
        root.add("verb cast", script.as_bytes());
        root.add("file", &[7_u8; 100_000]);
        let verbcast = root.path().join("verb cast");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&verbcast, mode).unwrap();
        Show { verbcast, file: root.path().join("file"), folder: root.path().to_owned(), ranks: 3 }
    }

    fn devices(root: &FakeRoot) -> String {
        fs::read_to_string(root.path().join("file.devices")).unwrap()
    }

    #[test]
    fn a_torn_copy_is_found_on_this_host() {
        let root = FakeRoot::new(&[]);
        stand_in(&root, "none").on_this_host().unwrap();
        assert_eq!(devices(&root), "none\nnone\nnone\n", "the best fabric is verbcast's choice");
        let error = stand_in(&root, "2").on_this_host().unwrap_err().to_string();
        assert!(error.ends_with("copy.2 differs"), "{error}");
    }

    #[test]
    fn a_torn_copy_is_found_in_the_guest_where_each_rank_has_its_device() {
        for (torn, code) in [("none", 0), ("1", 1)] {
            let root = FakeRoot::new(&[]);
            let script = stand_in(&root, torn).guest_script();
            let output = Command::new("sh")
                .args(["-c", &script])
                .env("TMPDIR", root.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{text}{errors}");
            assert_eq!(devices(&root), "rxe0\nrxe1\nrxe2\n");
            assert_eq!(errors.contains("copy.1 differs"), code == 1, "{errors}");
            assert_eq!(text.contains("100000 bytes to each of 3 ranks"), code == 0, "{text}");
        }
    }
}
