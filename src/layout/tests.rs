use super::*;
use crate::memory::Fake;

const MUTEX: &str = r#"
[[struct]]
name    = "pthread_mutex_t"
applies = { libc = "glibc", version = ">=2.36, <2.41", arch = "x86_64" }
size    = 40
fields  = { __lock = [0, "i32"], __owner = [8, "i32"], __list = [24, "ptr[2]"] }
source  = "made up"

[[frame]]
module   = ["libc.so.6", "libc-2.*.so"]
function = "pthread_mutex_lock"
means    = { waits = "mutex", address = ["futex", "argument 0"] }
source   = "made up"
"#;

fn glibc(version: &str) -> Subject {
    Subject::version(Version::parse(version)).with("arch", "x86_64")
}

#[test]
fn a_layout_is_chosen_by_what_was_met() {
    let table = Table::parse(MUTEX).unwrap();
    let mutex = table.layout("pthread_mutex_t", &glibc("2.36-9+deb12u4")).unwrap();
    assert_eq!(mutex.offset("__owner"), Some(8));
    assert_eq!(mutex.field("__gone"), None);
    assert!(table.layout("pthread_mutex_t", &glibc("2.41")).is_none());
    assert!(table.layout("pthread_mutex_t", &Subject::version(None)).is_none(), "an unknown version meets no bound");
    let arm = Subject::version(Version::parse("2.36")).with("arch", "aarch64");
    assert!(table.layout("pthread_mutex_t", &arm).is_none());
}

#[test]
fn a_signed_field_is_sign_extended() {
    let mut m = Fake::new();
    m.put_u32(Addr(0x1008), u32::MAX);
    let owner = Field::parse(8, "i32").unwrap();
    assert_eq!(owner.read(&m, Addr(0x1000)), Ok(-1));
    assert_eq!(owner.read_word(&m, Addr(0x1000)), Ok(0xffff_ffff));
    assert!(owner.read(&m, Addr(0x2000)).is_err());
}

#[test]
fn a_field_past_the_end_is_refused() {
    let text = MUTEX.replace("[24, \"ptr[2]\"]", "[32, \"ptr[2]\"]");
    assert!(matches!(Table::parse(&text), Err(LayoutError::Outside { end: 48, size: 40, .. })));
    let text = MUTEX.replace("\"i32\"", "\"int\"");
    assert!(matches!(Table::parse(&text), Err(LayoutError::Kind { .. })));
    let text = MUTEX.replace("made up", " ");
    assert!(matches!(Table::parse(&text), Err(LayoutError::NoSource(_))));
    let text = MUTEX.replace(">=2.36", "since 2.36");
    assert!(matches!(Table::parse(&text), Err(LayoutError::Version(_))));
}

#[test]
fn functions_match_exactly_and_modules_by_one_star() {
    let table = Table::parse(MUTEX).unwrap();
    let found = table.signatures("libc-2.31.so", "pthread_mutex_lock").next().unwrap();
    assert_eq!(found.means.word("waits"), Some("mutex"));
    assert_eq!(found.means.words("address"), ["futex", "argument 0"]);
    assert!(table.signatures("libc.so.6", "pthread_mutex_lock").next().is_some());
    assert!(table.signatures("libc.so.6", "my_pthread_mutex_lock").next().is_none());
    assert!(table.signatures("libcrypt.so.1", "pthread_mutex_lock").next().is_none());
}

#[test]
fn versions_compare_by_number() {
    let v = |t| Version::parse(t).unwrap();
    assert!(v("2.9") < v("2.36"));
    assert_eq!(v("3.13"), v("3.13.0rc1"));
    assert!(Version::parse("rc1").is_none());
    assert!(VersionRange::parse("2.36").unwrap().contains(&v("2.36.0")));
}

#[test]
fn the_embedded_tables_parse() {
    Table::parse(include_str!("../../symbols/layouts/glibc/x86_64.toml")).unwrap();
    Table::parse(include_str!("../../symbols/frames/glibc.toml")).unwrap();
}
