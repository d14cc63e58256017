//! Why a graph cannot be planned.

use thiserror::Error;

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPlanError {
    /// A bounded allocator is full, or too fragmented.
    #[error(
        "no room for {tensor}: it needs {size} bytes, the largest free block has {largest} of {capacity}"
    )]
    OutOfSpace {
        /// Its label.
        tensor: String,
        /// Bytes it needs, padding included.
        size: usize,
        /// The largest block that is free.
        largest: usize,
        /// All bytes, free or not.
        capacity: usize,
    },
    /// A tensor that no single buffer can hold.
    #[error("{tensor} needs {size} bytes, but the largest buffer of pool {pool} has {max_size}")]
    TooLarge {
        /// Its label.
        tensor: String,
        /// Bytes it needs, padding included.
        size: usize,
        /// Index of its pool.
        pool: usize,
        /// The most a buffer of the pool can have.
        max_size: usize,
    },
    /// More bytes in one pool than can be counted.
    #[error("{tensor} brings pool {pool} past the bytes that can be addressed")]
    Overflow {
        /// The tensor that was one too many.
        tensor: String,
        /// Index of its pool.
        pool: usize,
    },
    /// A tensor was given a pool that does not exist.
    #[error("{tensor} is to lie in pool {pool}, but there are {count}")]
    NoSuchPool {
        /// Its label.
        tensor: String,
        /// The pool.
        pool: usize,
        /// How many pools there are.
        count: usize,
    },
    /// Not every tensor was given a pool.
    #[error("pools are given for {given} tensors, the graph has {tensors}")]
    PoolsMissing {
        /// Tensors of the graph.
        tensors: usize,
        /// Entries in the request.
        given: usize,
    },
    /// An alignment that is not a power of two.
    #[error("pool {pool} has alignment {alignment}, which is not a power of two")]
    Alignment {
        /// Index of the pool.
        pool: usize,
        /// What it says.
        alignment: usize,
    },
    /// A step names a position past the last node, or one that an earlier step named.
    #[error("step {step} names node {position}, which {reason}")]
    Step {
        /// The step.
        step: usize,
        /// The position it names.
        position: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Steps that are not about this graph, or a transfer that has no place in it.
    #[error("transfers and steps must match the graph: {reason}")]
    Timeline {
        /// What does not match.
        reason: &'static str,
    },
}
