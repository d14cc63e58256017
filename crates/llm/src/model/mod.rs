//! Tensors: architectures as graphs, weights and where they lie, caches, sessions.
