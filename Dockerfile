# Builds the binaries `api`, `relay`, `demo` and the example consumer `receipts`, and puts them into one small image. Nothing
# here names a processor: the same file builds for amd64 and arm64.

FROM rust:1.95-bookworm AS build
WORKDIR /oncepost
COPY . .
# The caches make a second build take seconds to minutes instead of starting over. Each architecture has a target folder
# of its own, so that two builds for two processors don't mix. The binaries are copied out, as a cache is in no layer.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/target,sharing=locked \
    target="/target/$(uname -m)" \
    && cargo build --release --locked --target-dir "$target" --bins \
        -p oncepost-api -p oncepost-relay -p oncepost-demo -p oncepost-receipts \
    && cd "$target/release" && install -D -t /out api relay demo receipts

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="Oncepost" org.opencontainers.image.licenses="Apache-2.0"
# What the binaries load, and the authorities that TLS connections are checked against.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin oncepost
COPY --from=build /out/ /usr/local/bin/
# By number, so that a cluster which refuses images that run as root can tell.
USER 10001:10001
EXPOSE 8080 8081 9464 9465
CMD ["api"]
