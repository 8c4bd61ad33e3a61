//! Names are accepted as text or already parsed.

use zae_limiter_core::NameError;

/// Anything that is, or parses to, a name of kind `N`: `&str`, `String`, or the parsed name itself.
pub trait IntoName<N> {
    /// The name, or what is wrong with the text.
    fn into_name(self) -> Result<N, NameError>;
}

impl<T, N> IntoName<N> for T
where
    T: TryInto<N>,
    NameError: From<T::Error>,
{
    fn into_name(self) -> Result<N, NameError> {
        Ok(self.try_into()?)
    }
}
