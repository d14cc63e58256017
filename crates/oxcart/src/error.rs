//! What can go wrong on the way from a name to an answer.

/// Why a model was not loaded or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Finding or fetching the model.
    #[error(transparent)]
    Pull(#[from] oxcart_pull::Error),
    /// A worker that cannot be used.
    #[error(transparent)]
    Worker(#[from] oxcart_rpc::client::ConnectError),
    /// A device.
    #[error(transparent)]
    Device(#[from] oxcart_backend::Error),
    /// The model, or computing it.
    #[error(transparent)]
    Model(#[from] oxcart_llm::model::Error),
    /// The vocabulary of the model.
    #[error(transparent)]
    Vocab(#[from] oxcart_llm::text::VocabError),
    /// The chat template of the model.
    #[error(transparent)]
    Template(#[from] oxcart_llm::text::TemplateError),
    /// A request.
    #[error(transparent)]
    Request(#[from] oxcart_llm::engine::RequestError),
    /// A user without a home.
    #[error("there is no home folder to keep models in; set OXCART_CACHE to one")]
    NoFolder,
}
