//! Errors in the code that a macro is applied to, with their positions.

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

/// An error message with its place in the source.
pub(crate) struct Error {
    span: Span,
    message: String,
}

impl Error {
    pub(crate) fn new(span: Span, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
        }
    }

    /// `::core::compile_error! { "message" }`, which rustc reports at that place.
    pub(crate) fn into_tokens(self) -> TokenStream {
        let colons = [Punct::new(':', Spacing::Joint), Punct::new(':', Spacing::Alone)];
        let mut tokens: Vec<TokenTree> = Vec::new();
        for name in ["core", "compile_error"] {
            tokens.extend(colons.clone().map(TokenTree::from));
            tokens.push(Ident::new(name, self.span).into());
        }
        tokens.push(Punct::new('!', Spacing::Alone).into());
        let message = TokenTree::from(Literal::string(&self.message));
        tokens.push(Group::new(Delimiter::Brace, at(message, self.span).into()).into());
        tokens.into_iter().map(|token| at(token, self.span)).collect()
    }
}

fn at(mut token: TokenTree, span: Span) -> TokenTree {
    token.set_span(span);
    token
}
