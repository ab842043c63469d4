#!/usr/bin/env bash
# Runs each fuzz target for a while, from its seeds and what earlier runs have found. Needs `cargo install cargo-fuzz --locked` and a
# C++ compiler; the pinned Rust will do, since nothing here is unsafe and so no sanitizer is asked for.
#
#     fuzz/run.sh [SECONDS] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(idempotency_key strict_json canonical_form fingerprint)
fi

for target in "${targets[@]}"; do
  printf '\n== %s\n' "$target"
  # The first folder is where what is found is kept; a finding goes to artifacts/ and ends the run.
  mkdir -p "corpus/$target"
  cargo fuzz run --sanitizer none "$target" "corpus/$target" "seeds/$target" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -print_final_stats=1
done
