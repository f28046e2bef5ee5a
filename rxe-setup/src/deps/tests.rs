use super::*;
use crate::probe::tests::{FakeRoot, elf};

/// A Debian 12 with everything.
fn complete() -> FakeRoot {
    let root = FakeRoot::new(&[
        ("etc/os-release", "ID=debian\n"),
        ("usr/include/infiniband/verbs.h", ""),
        ("usr/lib/x86_64-linux-gnu/libclang-14.so.13", ""),
        ("usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h", ""),
        ("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", ""),
        ("var/lib/dpkg/info/rdma-core.list", ""),
    ]);
    for program in [
        "cc",
        "c++",
        "make",
        "cmake",
        "pkg-config",
        "qemu-system-x86_64",
        "cpio",
        "xz",
        "ip",
        "rdma",
        "ibv_devices",
        "ib_write_bw",
        "python3",
    ] {
        root.add(&format!("usr/bin/{program}"), b"");
    }
    root.add("usr/sbin/depmod", b"");
    root.add("usr/sbin/modprobe", b"");
    root.add("usr/bin/busybox", &elf(false));
    root
}

fn remove(root: &FakeRoot, path: &str) {
    std::fs::remove_file(root.path().join(path)).unwrap();
}

#[test]
fn a_bare_machine_lacks_everything_that_was_asked_for() {
    let bare = FakeRoot::new(&[("etc/os-release", "ID=debian\n")]);
    let build = missing(bare.path(), Purpose::Build);
    assert_eq!(
        build.names(&BTreeSet::new()),
        [
            "build-essential",
            "cmake",
            "pkg-config",
            "libibverbs-dev",
            "libclang1-14",
            "libclang-common-14-dev",
        ]
    );
    let guest = missing(bare.path(), Purpose::Guest);
    assert_eq!(
        guest.names(&BTreeSet::new()),
        [
            "qemu-system-x86",
            "busybox-static",
            "cpio",
            "kmod",
            "xz-utils",
            "iproute2",
            "rdma-core",
            "ibverbs-providers",
            "ibverbs-utils",
            "perftest",
        ]
    );
    let all = missing(bare.path(), Purpose::All);
    assert_eq!(all.packages, [build.packages, guest.packages, vec!["python3"]].concat());
}

#[test]
fn a_complete_machine_lacks_nothing() {
    for purpose in [Purpose::Build, Purpose::Guest, Purpose::Test, Purpose::All] {
        assert_eq!(missing(complete().path(), purpose), Missing::default());
    }
}

#[test]
fn each_missing_piece_names_its_package() {
    for (path, package) in [
        ("usr/bin/make", "build-essential"),
        ("usr/bin/cmake", "cmake"),
        ("usr/include/infiniband/verbs.h", "libibverbs-dev"),
        ("usr/bin/qemu-system-x86_64", "qemu-system-x86"),
        ("usr/sbin/depmod", "kmod"),
        ("usr/bin/rdma", "iproute2"),
        ("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
        ("var/lib/dpkg/info/rdma-core.list", "rdma-core"),
        ("usr/bin/ib_write_bw", "perftest"),
        ("usr/bin/python3", "python3"),
    ] {
        let root = complete();
        remove(&root, path);
        assert_eq!(missing(root.path(), Purpose::All).names(&BTreeSet::new()), [package]);
    }
}

#[test]
fn a_dynamic_busybox_does_not_do() {
    let root = complete();
    root.add("usr/bin/busybox", &elf(true));
    assert_eq!(missing(root.path(), Purpose::Guest).packages, ["busybox-static"]);
    assert_eq!(missing(root.path(), Purpose::Build).packages, [] as [&str; 0]);
}

#[test]
fn ubuntu_needs_zstd() {
    let root = complete();
    root.add("etc/os-release", b"NAME=Ubuntu\nID=ubuntu\n");
    assert_eq!(missing(root.path(), Purpose::Guest).packages, ["zstd"]);
}

#[test]
fn libclang_is_taken_in_the_version_that_is_there_or_offered() {
    let root = complete();
    remove(&root, "usr/lib/llvm-14/lib/clang/14.0.6/include/stddef.h");
    let names = |offered: &[&str]| {
        let offered = offered.iter().map(|name| (*name).to_owned()).collect();
        missing(root.path(), Purpose::Build).names(&offered)
    };
    assert_eq!(
        names(&["libclang1-19"]),
        ["libclang-common-14-dev"],
        "the headers of what is there"
    );
    remove(&root, "usr/lib/x86_64-linux-gnu/libclang-14.so.13");
    root.add("usr/lib/llvm-14/lib/libclang-cpp.so.14", b"");
    assert_eq!(names(&["libclang1-18"]), ["libclang1-18", "libclang-common-18-dev"]);
    assert_eq!(names(&["libclang1-14", "libclang1-18"])[0], "libclang1-14");
    assert_eq!(names(&["libclang1-99"])[0], "libclang1-14", "nothing usable is offered");
    // Another version with its headers does as well, in the folders of its own.
    root.add("usr/lib/llvm-19/lib/libclang.so.1", b"");
    root.add("usr/lib/llvm-19/lib/clang/19/include/stddef.h", b"");
    assert!(names(&[]).is_empty());
}

#[test]
fn candidates_are_read_from_apts_answer() {
    let policy = "cmake:\n  Installed: (none)\n  Candidate: 3.25\n  Version table:\n     3.25 500\n\
                  ghost:\n  Installed: (none)\n  Candidate: (none)\n";
    assert_eq!(candidates(policy), ["cmake".to_owned()].into());
    assert_eq!(candidates(""), BTreeSet::new());
}

#[test]
fn the_line_to_run_updates_only_where_it_must() {
    let names = ["cmake".to_owned(), "cpio".to_owned()];
    assert_eq!(
        install_line(&names, false),
        "apt-get -q install -y --no-install-recommends cmake cpio"
    );
    assert!(install_line(&names, true).starts_with("apt-get -q update && apt-get -q install"));
}
