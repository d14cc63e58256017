//! Where the tensors of a graph lie.
