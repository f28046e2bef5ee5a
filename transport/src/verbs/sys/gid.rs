//! GID tables: by one call where libibverbs has it, else from sysfs.

use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use ibverbs_sys::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, ibv_gid_entry, ibv_port_attr};

use super::super::driver::{GidEntry, GidKind};
use super::super::error::VerbsError;
use super::device::Context;
use super::library::QueryGidTable;
use super::returned_error;

/// The kernel's directory of RDMA devices.
const SYSFS: &str = "/sys/class/infiniband";

/// The entries that are not zero, a table per port.
pub(super) fn tables(
    context: &Context,
    ports: &[(u8, ibv_port_attr)],
) -> Result<Vec<Vec<GidEntry>>, VerbsError> {
    let length = |port: &ibv_port_attr| u32::try_from(port.gid_tbl_len).unwrap_or(0);
    match context.library.query_gid_table {
        Some(query) => {
            let total = ports.iter().map(|(_, port)| length(port) as usize).sum();
            let entries = query_all(context, query, total)?;
            let of_port = |number: u8| {
                let of_port = entries.iter().filter(|e| e.port_num == u32::from(number));
                of_port.map(entry).collect()
            };
            Ok(ports.iter().map(|&(number, _)| of_port(number)).collect())
        }
        None => {
            let device = Path::new(SYSFS).join(&context.name);
            let table = |&(number, ref port): &(u8, ibv_port_attr)| {
                read_sysfs(&device.join("ports").join(number.to_string()), length(port))
            };
            Ok(ports.iter().map(table).collect())
        }
    }
}

fn query_all(
    context: &Context,
    query: QueryGidTable,
    total: usize,
) -> Result<Vec<ibv_gid_entry>, VerbsError> {
    let mut entries = vec![ibv_gid_entry::default(); total];
    let (first, entry_bytes) = (entries.as_mut_ptr(), size_of::<ibv_gid_entry>());
    // SAFETY: the context is open and the array has `total` entries of the size that is passed
    // (ibv_query_gid_table(3)).
    let count = unsafe { query(context.raw, first, total, 0, entry_bytes) };
    let count = usize::try_from(count)
        .map_err(|_| returned_error("ibv_query_gid_table", &context.name, count as i32))?;
    entries.truncate(count);
    Ok(entries)
}

fn entry(raw: &ibv_gid_entry) -> GidEntry {
    // SAFETY: both members of the union are plain bytes, initialised by the call or by zeroing.
    let gid = unsafe { raw.gid.raw };
    let kind = match raw.gid_type {
        IBV_GID_TYPE_IB => GidKind::InfiniBand,
        IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        _ => GidKind::RoceV2,
    };
    let interface = nix::net::if_::if_indextoname(raw.ndev_ifindex).ok();
    let interface = interface.map(|name| name.to_string_lossy().into_owned());
    GidEntry { index: raw.gid_index, gid, kind, interface }
}

/// The table below a port's sysfs directory; entries that cannot be read are as good as zero.
fn read_sysfs(port: &Path, length: u32) -> Vec<GidEntry> {
    let read = |path: &str, index: u32| {
        let text = fs::read_to_string(port.join(path).join(index.to_string())).ok()?;
        Some(text.trim().to_owned())
    };
    let entry = |index| {
        let address: Ipv6Addr = read("gids", index)?.parse().ok()?;
        if address.is_unspecified() {
            return None;
        }
        let kind = match read("gid_attrs/types", index)?.as_str() {
            "RoCE v2" => GidKind::RoceV2,
            // The kernel has one name for both; with a network device it is RoCE.
            _ if read("gid_attrs/ndevs", index).is_some() => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        let interface = read("gid_attrs/ndevs", index);
        Some(GidEntry { index, gid: address.octets(), kind, interface })
    };
    (0..length).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_tables_are_read_as_the_kernel_writes_them() {
        let name = format!("verbcast-gid-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let write = |path: &str, index: u32, text: &str| {
            let folder = root.join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(index.to_string()), format!("{text}\n")).unwrap();
        };
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        let mapped = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        for (index, gid) in [(0, mapped), (1, mapped), (2, zero), (3, "fe80::1")] {
            write("gids", index, gid);
        }
        write("gid_attrs/types", 0, "IB/RoCE v1");
        write("gid_attrs/types", 1, "RoCE v2");
        write("gid_attrs/types", 3, "IB/RoCE v1");
        write("gid_attrs/ndevs", 0, "eth0");
        write("gid_attrs/ndevs", 1, "eth0");
        let table = read_sysfs(&root, 5);
        fs::remove_dir_all(&root).unwrap();
        let gid = "::ffff:10.9.0.1".parse::<Ipv6Addr>().unwrap().octets();
        let interface = Some("eth0".to_owned());
        let expected = [
            GidEntry { index: 0, gid, kind: GidKind::RoceV1, interface: interface.clone() },
            GidEntry { index: 1, gid, kind: GidKind::RoceV2, interface },
            GidEntry {
                index: 3,
                gid: "fe80::1".parse::<Ipv6Addr>().unwrap().octets(),
                kind: GidKind::InfiniBand,
                interface: None,
            },
        ];
        assert_eq!(table, expected);
    }
}
