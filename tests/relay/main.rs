//! Exactly once into a real Kafka.
