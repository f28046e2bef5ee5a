//! What can be tested without a device.

use std::path::Path;

use super::*;

#[test]
fn a_library_that_is_not_there_is_said_to_be_missing_with_the_remedy() {
    let error = Library::load("libibverbs-of-nobody.so.1").err().unwrap();
    assert!(matches!(error, VerbsError::Unavailable { .. }));
    let text = error.to_string();
    assert!(text.contains("libibverbs-of-nobody.so.1"), "{text}");
    assert!(text.contains("install libibverbs1"), "{text}");
}

#[test]
fn a_library_that_lacks_a_verb_is_unavailable_too() {
    let error = Library::load("libc.so.6").err().unwrap();
    assert!(matches!(error, VerbsError::Unavailable { .. }));
    assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
}

#[test]
fn the_device_list_is_that_of_the_kernel() {
    let driver = match driver() {
        Ok(driver) => driver,
        Err(error) => {
            // A machine without libibverbs: then the error, and nothing else, is what is expected.
            assert!(error.to_string().contains("cannot open shared object file"), "{error}");
            return;
        }
    };
    let mut names: Vec<_> =
        driver.devices().unwrap().into_iter().map(|device| device.name).collect();
    names.sort();
    let kernel = Path::new("/sys/class/infiniband");
    let mut expected: Vec<_> = std::fs::read_dir(kernel)
        .map(|entries| {
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        })
        .unwrap_or_default();
    expected.sort();
    assert_eq!(names, expected);
    let error = driver.open("no-such-device").err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, VerbsError::NoSuchDevice { .. }), "{text}");
    let present = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    assert!(text.contains(&format!("there are: {present}")), "{text}");
}

#[test]
fn errors_of_verbs_name_function_device_and_cause() {
    let errno = |error: VerbsError| match error {
        VerbsError::Verb { function, device, source } => {
            assert_eq!((function, device.as_str()), ("ibv_modify_qp", "rxe0"));
            source.raw_os_error()
        }
        other => panic!("{other}"),
    };
    assert_eq!(errno(returned_error("ibv_modify_qp", "rxe0", libc::EINVAL)), Some(libc::EINVAL));
    assert_eq!(errno(returned_error("ibv_modify_qp", "rxe0", -libc::EINVAL)), Some(libc::EINVAL));
}
