#![no_main]

use libfuzzer_sys::fuzz_target;

// Two bodies, parted by a byte that no UTF-8 has.
fuzz_target!(|data: &[u8]| {
    let mut bodies = data.splitn(2, |byte| *byte == 0xFF);
    api::fuzzing::check_fingerprint(bodies.next().unwrap_or_default(), bodies.next().unwrap_or_default());
});
