//! The rules of the tree.
