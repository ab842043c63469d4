#!/usr/bin/env bash
# The shop's tests: the module that retries, and the whole in a real browser. Needs Node.js 18.19 or newer with npm, and
# Chromium, which CHROMIUM may name; Debian's package is the default. Screenshots are put into target/screenshots.
set -euo pipefail
cd "$(dirname "$0")/../.."

CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
for needed in node npm "${CHROMIUM:-chromium}"; do
  if ! command -v "$needed" >/dev/null; then
    echo "tests/browser/run.sh: $needed is missing (Debian, Ubuntu: apt-get install nodejs npm chromium)" >&2
    exit 1
  fi
done
export CHROMIUM

npm ci --prefix tests/browser --ignore-scripts --no-audit --no-fund
# The whole workspace: two packages alone would have other features of their dependencies, and be built a second time.
cargo build --locked --workspace --bins
node --test tests/browser/retry.test.js
# A test waits 30 s at most for each thing; ten minutes end a run that hangs.
exec timeout --kill-after=30 600 node --test tests/browser/shop.test.js
