// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs as `metrale plan` and `metrale replay` read them: what is odd, cut, foreign or empty, and the tables they write.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{metrale, metrale_on, recorded_log, recorded_residency, table};
use metrale_cli::Exit;

#[test]
fn a_table_that_was_there_stays_until_another_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (log, table) = (folder.path().join("log.csv"), folder.path().join("ops.csv"));
    let per_op = ["--per-op", table.to_str().unwrap()];
    let replay = [&per_op[..], &["--driver", "/no/such/library.so"]].concat();
    fs::write(&table, "old").unwrap();
    for (text, command, more) in [
        ("Action,Pointer,Size\nallocate,1,-1\n", "plan", &per_op[..]),
        ("Action;Pointer;Size\nallocate;1;1\n", "plan", &per_op),
        ("Action,Pointer,Size\nallocate,1,1\n", "replay", &replay),
    ] {
        fs::write(&log, text).unwrap();
        assert_ne!(metrale_on(command, &log, more).exit, Exit::Done);
        assert_eq!(fs::read_to_string(&table).unwrap(), "old", "{command} {text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }
    assert_eq!(metrale_on("plan", &log, &per_op).exit, Exit::Done);
    assert_eq!(fs::read_to_string(&table).unwrap(), "op,live_bytes,resident_bytes\n0,1,2097152\n");
}

/// A shell opens the file, and the program is to add to it.
#[cfg(target_os = "linux")]
#[test]
fn a_table_onto_the_standard_output_goes_where_that_goes() {
    use std::process::Command;
    let folder = tempfile::tempdir().unwrap();
    let (log, kept) = (folder.path().join("log.csv"), folder.path().join("kept"));
    fs::write(&log, "Action,Pointer,Size\nallocate,1,1\n").unwrap();
    for output in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        fs::write(&kept, "before\n").unwrap();
        let append = fs::OpenOptions::new().append(true).open(&kept).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_metrale"));
        let status =
            program.arg("plan").arg(&log).args(["--per-op", output]).stdout(append).status().unwrap();
        assert!(status.success());
        let text = fs::read_to_string(&kept).unwrap();
        assert!(text.starts_with("before\nop,live_bytes,resident_bytes\n0,1,2097152\n"), "{text}");
        assert!(text.contains("peak resident"), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_log_that_may_have_been_cut_in_its_last_number_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    for (text, told) in [("allocate,1,5120", true), ("allocate,1,5120\n", false)] {
        fs::write(&log, format!("Action,Pointer,Size\n{text}")).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert_eq!(ended.exit, Exit::Done);
        assert_eq!(ended.err.contains("its last cell is not whole"), told, "{}", ended.err);
    }
    fs::write(&log, "Thread,Time,Action,Pointer,Size,Stream\n1,12,allocate,0x10,10485").unwrap();
    let ended = metrale_on("plan", &log, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("the last line is cut off: it has 5 of 6 columns"), "{}", ended.err);
}

#[test]
fn advice_helps_where_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    let utf16: Vec<u8> = "\u{feff}Action\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, words) in [
        (b"Action\tPointer\tSize\n".to_vec(), "set apart by tabs: write the table with commas"),
        (b"Action,Size\n".to_vec(), "the header names no column pointer"),
        (b"\xff\xff\xff".to_vec(), "line 1: it is no UTF-8 text"),
        (
            b"Action,Pointer,Size\rallocate,1,5\r".to_vec(),
            "line 1: it has a carriage return inside: end each line by",
        ),
        (utf16, "this is UTF-16 text, not an allocation log: a log is CSV text in UTF-8"),
        (b"\x28\xb5\x2f\xfd....".to_vec(), "this is a zstd file, not an allocation log"),
        (b"\x80\x04\x95....".to_vec(), "this is a PyTorch pickle, not an allocation log"),
    ] {
        fs::write(&log, bytes).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert_eq!(ended.exit, Exit::BadInput);
        assert!(ended.err.contains(words) && !ended.err.contains("--lenient"), "{}", ended.err);
        assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::BadInput, "which would not help");
    }
    // Rows without a header among other lines: there it helps.
    fs::write(&log, "INFO begins\n1,12:00:00,allocate,0x10,7,0\n").unwrap();
    assert!(metrale_on("plan", &log, &[]).err.contains("--lenient passes over"));
    assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::Done);
    // Whatever its name, what is neither a log nor a model is told to be neither.
    for name in ["log.csv", "log.gz", "log"] {
        let path = folder.path().join(name);
        fs::write(&path, b"PK\x03\x04\x14\0\0\0\0\0").unwrap();
        let ended = metrale_on("replay", &path, &["--driver", "sim"]);
        assert!(ended.err.contains("this is a zip archive, not an allocation log"), "{}", ended.err);
        let ended = metrale_on("load", &path, &["--driver", "sim"]);
        assert!(
            ended.err.contains("a zip archive") && !ended.err.contains("allocation log"),
            "{}",
            ended.err
        );
    }
    for before in ["Loading the model", "10%\r100%"] {
        fs::write(&log, format!("{before}\nAction,Pointer,Size\nallocate,1,5\n")).unwrap();
        let ended = metrale_on("plan", &log, &[]);
        assert!(ended.err.contains("(--lenient passes over such rows)"), "{}", ended.err);
        assert_eq!(metrale_on("plan", &log, &["--lenient"]).exit, Exit::Done, "which helps");
    }
}

#[test]
fn a_log_does_not_write_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size,Location\nallocate,1,512,\x1b[31mred\x07\n").unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let out = metrale_on(command, &log, more).out;
        assert!(out.contains("\\u{1b}[31mred\\u{7}") && !out.contains('\x1b'), "{out}");
    }
}

#[test]
fn odd_rows_are_said_with_their_lines_and_senseless_ones_end_it_or_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(
        &log,
        "Thread,Time,Action,Pointer,Size,Stream\r\n\
         1,10:00:00.000001,allocate,0x7f0000000000,4096,0\r\n\
         2,10:00:00.000002,free,0x7f0000009000,512,0\r\n\
         1,10:00:00.000003,free,0x7f0000000000,4096,0\r\n\
         1,10:00:00.000004,free,0x7f0000000000,4096,0\r\n\
         1,10:00:00.000005,allocate failure,(nil),99999999999,0\r\n",
    )
    .unwrap();
    let ended = metrale_on("plan", &log, &["--json"]);
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    assert!(
        ended.err.contains("line 3: 0x7f0000009000 is freed, but this log does not allocate it"),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("line 5: 0x7f0000000000 is freed, which line 4 has done before"),
        "{}",
        ended.err
    );
    assert_eq!(ended.json()["peak_live_bytes"], 4096);

    let out = folder.path().join("ops.csv");
    let senseless = "Action,Pointer,Size\nallocate,1,5\nallocate,zzz,5\nfree,1\nallocate,2,18446744073709551615\nfree,1,5\n";
    fs::write(&log, senseless).unwrap();
    let per_op = ["--json", "--per-op", out.to_str().unwrap()];
    let ended = metrale_on("plan", &log, &per_op);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(
        ended.err.contains("log.csv: line 3: the pointer \"zzz\"") && ended.err.contains("--lenient"),
        "{}",
        ended.err
    );
    assert_eq!(ended.json()["error"]["kind"], "bad_input");
    assert!(!out.exists(), "half a table is none");

    let ended = metrale_on("plan", &log, &[&per_op[..], &["--lenient"]].concat());
    assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
    for part in ["line 3: the pointer", "line 4: the row has 2 columns", "line 5: "] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
    assert_eq!(ended.json()["allocations"], 1);
    assert_eq!(ended.json()["end_live_bytes"], 0);
}

#[test]
fn a_log_is_told_by_its_bytes_and_what_is_none_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = path("no suffix");
    fs::write(&log, "Action,Pointer,Size\nallocate,1,5\n").unwrap();
    assert_eq!(metrale_on("plan", &log, &["--json"]).json()["allocations"], 1);

    let empty = path("empty.csv");
    fs::write(&empty, "").unwrap();
    let ended = metrale_on("plan", &empty, &["--json"]);
    assert_eq!((ended.exit, ended.json()["allocations"].as_u64()), (Exit::Done, Some(0)));
    assert!(ended.err.contains("no rows"), "{}", ended.err);

    // A log among other programs' lines.
    let mixed = path("stderr.txt");
    fs::write(&mixed, "[INFO] starting\n1,10:00:00.1,allocate,0x10,512,0x0\n[INFO] done\n").unwrap();
    assert_eq!(metrale_on("plan", &mixed, &[]).exit, Exit::BadInput);
    let ended = metrale_on("plan", &mixed, &["--json", "--lenient"]);
    assert_eq!((ended.exit, ended.json()["allocations"].as_u64()), (Exit::Done, Some(1)), "{}", ended.err);

    let text = path("notes.txt");
    fs::write(&text, "shopping list\n").unwrap();
    let ended = metrale_on("plan", &text, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("line 1") && ended.err.contains("Action, Pointer and Size"), "{}", ended.err);

    let cut = path("cut.csv.gz");
    let whole = fs::read(recorded_log("random-1.csv.gz")).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let ended = metrale_on("plan", &cut, &[]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("cannot be read on"), "{}", ended.err);

    // Said once: an error's text holds its reason already.
    for (file, more, reason) in [
        (&text, &[][..], "neither a header"),
        (&cut, &[], "cannot be read on"),
        (&cut, &["--lenient"], "cannot be read on"),
        (&log, &["--per-op", "/none/x"], "os error"),
    ] {
        let ended = metrale_on("plan", file, more);
        assert_eq!(ended.err.matches(reason).count(), 1, "{}", ended.err);
    }
    let ended = metrale_on("report", &text, &[]);
    assert_eq!(ended.err.matches("at line 1 column").count(), 1, "{}", ended.err);

    let two: [PathBuf; 3] = ["plan".into(), log.clone(), empty];
    assert_eq!(metrale(two).exit, Exit::BadInput);
    let itself = metrale_on("plan", &log, &["--per-op", log.to_str().unwrap()]);
    assert_eq!(itself.exit, Exit::BadInput);
    assert!(itself.err.contains("names the input itself"), "{}", itself.err);
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 2, "it is as it was");
}

#[test]
fn what_is_no_log_at_all_is_refused_however_lenient() {
    let folder = tempfile::tempdir().unwrap();
    let (path, table) = (folder.path().join("snapshot.pickle.gz"), folder.path().join("ops.csv"));
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, b"\x80\x04\x95\xff\n}\x94(\x8c\n").unwrap();
    encoder.finish().unwrap();
    for (command, more) in
        [("plan", &["--per-op", table.to_str().unwrap()][..]), ("replay", &["--driver", "sim"])]
    {
        let ended = metrale_on(command, &path, &[&["--lenient"], more].concat());
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(ended.err.contains("no allocation log") && ended.err.contains("line 1"), "{}", ended.err);
    }
    assert!(!table.exists());
    // A log whose rows are all wrong is one, and of no use.
    fs::write(&path, "Action,Pointer,Size\nallocate,0x1\n").unwrap();
    let ended = metrale_on("plan", &path, &["--lenient"]);
    assert_eq!(ended.exit, Exit::BadInput);
    assert!(ended.err.contains("none of its rows can be used (1 passed over): line 2"), "{}", ended.err);
}

/// Who names a file as a table is told of its lines, not of a model's header.
#[test]
fn a_table_by_its_name_is_no_broken_model() {
    let folder = tempfile::tempdir().unwrap();
    let utf16: Vec<u8> = "\u{feff}Action,Pointer,Size\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (name, bytes) in
        [("odd.csv", b"Action,Pointer,Size\n\x01allocate,0x1000,10\n".to_vec()), ("wide.CSV", utf16)]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let ended = metrale(["plan", path.to_str().unwrap()]);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(!ended.err.contains("safetensors"), "{}", ended.err);
        assert!(ended.err.contains("line 2: ") || ended.err.contains("this is UTF-16 text"), "{}", ended.err);
    }
}

#[test]
fn a_cut_log_is_planned_as_far_as_it_goes_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (cut, out) = (folder.path().join("cut.csv.gz"), folder.path().join("ops.csv"));
    let log = recorded_log("random-1.csv.gz");
    let whole = fs::read(&log).unwrap();
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let more = [more, &["--per-op", out.to_str().unwrap()]].concat();
        let strict = metrale_on(command, &cut, &more);
        assert_eq!(strict.exit, Exit::BadInput, "{}", strict.err);
        assert!(strict.err.contains("(--lenient takes what came before)"), "{}", strict.err);
        assert!(!out.exists());

        let ended = metrale_on(command, &cut, &[&more[..], &["--lenient"]].concat());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        let rows = table(&out).1;
        assert!(rows.len() > 1000 && rows.len() < 5098, "{}", rows.len());
        let warning = format!("warning: line {}: the log cannot be read on: ", rows.len() + 2);
        assert!(ended.err.contains(&warning), "{warning}: {}", ended.err);
        for (row, resident_bytes) in rows.iter().zip(recorded_residency(&log)) {
            assert_eq!(row[2], resident_bytes, "row {}", row[0]);
        }
        fs::remove_file(&out).unwrap();
        let json = metrale_on(command, &cut, &[&more[..], &["--lenient", "--json"]].concat()).json();
        assert!(warning.ends_with(&json["broke_off"].as_str().unwrap()[..warning.len() - "warning: ".len()]));
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn rows_of_two_devices_are_not_followed_together() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("dev.csv");
    let header = "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,Location";
    let row = |action: &str, device: u32, bytes: u32| {
        format!("{action},{device},0x7f0000000000,0,{bytes},0,0,1,1,1,1,a.cu:1\n")
    };
    let rows = [row("Alloc", 0, 1000), row("Alloc", 1, 2000), row("Free", 0, 0), row("Free", 1, 0)];
    fs::write(&log, format!("{header}\n{}", rows.concat())).unwrap();
    for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
        let ended = metrale_on(command, &log, more);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.err);
        assert!(
            ended.err.contains("line 3: the row is of device 1, and those before are of device 0: give the rows of one device"),
            "{}",
            ended.err
        );
        let ended = metrale_on(command, &log, &[more, &["--lenient"]].concat());
        assert_eq!(ended.exit, Exit::Done, "{}", ended.err);
        assert!(!ended.err.contains("already live"), "{}", ended.err);
        assert!(ended.err.contains("2 rows passed over in all, 2 of them of other devices"), "{}", ended.err);
        assert!(ended.out.contains("2 x row passed over"), "{}", ended.out);
    }
    fs::write(&log, format!("{header}\n{}{}", rows[0], rows[2])).unwrap();
    let ended = metrale_on("plan", &log, &["--json"]);
    assert_eq!((ended.exit, ended.err.as_str()), (Exit::Done, ""));
    assert_eq!(ended.json()["peak_live_bytes"], 1000);
}

#[test]
fn an_empty_file_is_an_empty_log_unless_its_name_says_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["rmm_debug", "x.txt", "STDERR", "e.gz", "rmm_log.dev0.csv", "memory.log", "t.tsv"] {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        for (command, more) in [("plan", &[][..]), ("replay", &["--driver", "sim"])] {
            let ended = metrale_on(command, &path, more);
            assert_eq!(ended.exit, Exit::Done, "{command} {name}: {}", ended.err);
            assert!(ended.err.contains("note: the log has no rows"), "{command} {name}: {}", ended.err);
        }
    }
    for name in ["m.safetensors", "model.safetensors.index.json", "config.JSON", "w.bin", "w.gguf", "w.onnx"]
    {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        let ended = metrale_on("plan", &path, &[]);
        assert_eq!(ended.exit, Exit::BadInput, "{name}: {}", ended.out);
        assert!(ended.err.contains("the file is empty"), "{name}: {}", ended.err);
    }
}

#[test]
fn a_column_named_twice_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size,Size\nallocate,0x10000,100,200\n").unwrap();
    for more in [&[][..], &["--lenient"]] {
        let ended = metrale_on("plan", &log, more);
        assert_eq!(ended.exit, Exit::BadInput, "{}", ended.out);
        assert!(
            ended.err.contains("line 1: the header names \"Size\" twice, as columns 3 and 4"),
            "{}",
            ended.err
        );
    }
}

#[test]
fn an_answer_without_an_account_names_its_input_as_the_account_would() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.csv");
    fs::write(&log, "Action,Pointer,Size\nsteal,1,5\n").unwrap();
    let path = log.to_str().unwrap();
    for (args, field) in [
        (&["replay", path, "--driver", "sim", "--json"][..], "log"),
        (&["plan", path, "--json"], "log"),
        (&["report", path, "--json"], "snapshot"),
        (&["load", path, "--driver", "sim", "--json"], "model"),
    ] {
        let json = metrale(args.iter().copied()).json();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        fields.retain(|field| *field != "error");
        assert_eq!((fields, &json[field]), (vec![field], &path.into()), "{args:?}");
    }
}
