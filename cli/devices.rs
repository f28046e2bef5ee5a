//! `verbcast devices`: which RDMA ports there are, which of them a rank would use, and why.

use std::process::ExitCode;

use serde::Serialize;
use verbcast::Config;
use verbcast_transport::verbs::driver::{DeviceInfo, GidEntry, GidKind};
use verbcast_transport::verbs::error::VerbsError;
use verbcast_transport::verbs::select::{
    PortDescription, RailSettings, describe_ports, select_rails,
};

use crate::exit;

/// Lists RDMA devices, their ports and GIDs, and which ports would be used.
///
/// The choice is the one of a rank alone on its host, in this environment (`VERBCAST_DEVICE`,
/// `VERBCAST_PORT`, `VERBCAST_GID_INDEX`). A machine without verbs is no error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object per port and line
    #[arg(long)]
    json: bool,
}

/// A port with all its GIDs.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    port: PortDescription,
    gids: Vec<Gid>,
}

#[derive(Serialize)]
struct Gid {
    index: u32,
    address: String,
    kind: GidKind,
    interface: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    const COMMAND: &str = "verbcast devices";
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => return exit::failed(COMMAND, &error),
    };
    let settings = RailSettings {
        devices: &config.devices,
        port: config.port,
        gid_index: config.gid_index,
        pkey_index: config.pkey_index,
        ..RailSettings::default()
    };
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error @ VerbsError::Unavailable { .. }) => {
            say(args, &error.to_string());
            return ExitCode::SUCCESS;
        }
        Err(error) => return exit::failed(COMMAND, &error),
    };
    let rows: Vec<Row> = describe_ports(&devices, &settings)
        .into_iter()
        .map(|port| Row { gids: gids(&devices, &port), port })
        .collect();
    if let Err(error) = print(args, &rows) {
        return exit::failed(COMMAND, &error);
    }
    match select_rails(&devices, &settings) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error @ VerbsError::NoUsablePort { .. }) => {
            say(args, &error.to_string());
            ExitCode::SUCCESS
        }
        // The environment asks for what is not there.
        Err(error) => exit::failed(COMMAND, &error),
    }
}

#[cfg(feature = "verbs")]
fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    verbcast_transport::verbs::sys::driver()?.devices()
}

#[cfg(not(feature = "verbs"))]
fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let reason = "this verbcast was built without the feature `verbs`".into();
    Err(VerbsError::Unavailable { reason })
}

/// For people: among the table, or beside the JSON lines.
fn say(args: &Args, text: &str) {
    if args.json {
        eprintln!("verbcast devices: {text}");
    } else {
        println!("{text}");
    }
}

fn gids(devices: &[DeviceInfo], description: &PortDescription) -> Vec<Gid> {
    let device = devices.iter().find(|device| device.name == description.device);
    let ports = device.map_or(&[][..], |device| &device.ports);
    let port = ports.iter().find(|port| port.number == description.port);
    let gids = port.map_or(&[][..], |port| &port.gids);
    let gid = |entry: &GidEntry| Gid {
        index: entry.index,
        address: entry.address().to_string(),
        kind: entry.kind,
        interface: entry.interface.clone(),
    };
    gids.iter().map(gid).collect()
}

fn print(args: &Args, rows: &[Row]) -> Result<(), serde_json::Error> {
    if args.json {
        for row in rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else if !rows.is_empty() {
        print!("{}", table(rows)?);
    }
    Ok(())
}

fn table(rows: &[Row]) -> Result<String, serde_json::Error> {
    let mut lines =
        vec![["", "DEVICE", "PORT", "STATE", "LINK", "RATE", "MTU", "WHY"].map(String::from)];
    for Row { port, .. } in rows {
        lines.push([
            if port.chosen { "*" } else { "" }.into(),
            port.device.clone(),
            port.port.to_string(),
            name(&port.state)?,
            name(&port.link_layer)?,
            rate(port.rate_mbps),
            port.active_mtu_bytes.to_string(),
            port.reason.clone(),
        ]);
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let row = cells.collect::<Vec<_>>().join("  ");
        text.push_str(row.trim_end());
        text.push('\n');
        let row = number.checked_sub(1).map(|number| &rows[number]);
        for gid in row.map_or(&[][..], |row| &row.gids) {
            let used = row.is_some_and(|row| row.port.gid_index == Some(gid.index));
            let mark = if used { '*' } else { ' ' };
            let interface = gid.interface.as_deref().unwrap_or("");
            let kind = name(&gid.kind)?;
            let line = format!(
                "   {mark} gid {:<3} {kind:<10}  {:<39}  {interface}",
                gid.index, gid.address
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.push_str("* would be used\n");
    Ok(text)
}

/// The name that JSON has for it.
fn name(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_value(value)?.as_str().unwrap_or_default().to_owned())
}

fn rate(mbps: u32) -> String {
    match mbps {
        0 => "unknown".into(),
        _ => format!("{} Gb/s", f64::from(mbps) / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbcast_transport::verbs::driver::{DeviceLimits, LinkLayer, PortInfo, PortState};

    fn device(name: &str, gids: Vec<GidEntry>) -> DeviceInfo {
        let port = PortInfo {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            active_mtu_bytes: 1024,
            max_message_bytes: 8 << 20,
            pkey_count: 1,
            rate_mbps: 10_000,
            gids,
        };
        let limits = DeviceLimits {
            max_qp: 1000,
            max_qp_wr: 1000,
            max_sge: 32,
            max_cq: 1000,
            max_cqe: 32767,
            max_mr: 1000,
            max_mr_bytes: 1 << 40,
        };
        DeviceInfo { name: name.into(), guid: 1, limits, ports: vec![port] }
    }

    fn gid(index: u32, address: &str) -> GidEntry {
        let gid = address.parse::<std::net::Ipv6Addr>().unwrap().octets();
        GidEntry { index, gid, kind: GidKind::RoceV2, interface: Some("eth0".into()) }
    }

    #[test]
    fn the_table_marks_what_would_be_used_and_lists_every_gid() {
        let gids_there = vec![gid(0, "fe80::1"), gid(1, "::ffff:10.9.0.1")];
        let devices = [device("rxe0", gids_there), device("rxe1", vec![gid(0, "fe80::2")])];
        let rows: Vec<Row> = describe_ports(&devices, &RailSettings::default())
            .into_iter()
            .map(|port| Row { gids: gids(&devices, &port), port })
            .collect();
        let text = table(&rows).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("*  rxe0") && lines[1].contains("10 Gb/s"), "{text}");
        assert!(lines[2].starts_with("     gid 0") && lines[2].contains("fe80::1"), "{text}");
        assert!(lines[3].starts_with("   * gid 1") && lines[3].contains("eth0"), "{text}");
        assert!(lines[4].starts_with("   rxe1"), "{text}");
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(json["chosen"], true);
        assert_eq!(json["gids"][1]["address"], "::ffff:10.9.0.1");
    }
}
