//! Code that macros generate: text with holes for tokens of the user's.

use proc_macro::{Group, Span, TokenStream, TokenTree};

/// The tokens of `template`, with each `$name` replaced by the tokens of that name in `holes`.
///
/// Local variables of the template are invisible to the user's tokens, and the reverse.
pub(crate) fn fill(template: &str, holes: &[(&str, &TokenStream)]) -> TokenStream {
    match template.parse() {
        Ok(tokens) => substitute(tokens, holes),
        Err(error) => unreachable!("templates are of this crate: {error}: {template}"),
    }
}

/// The path of the crate `ferretto`, unless the user gives another.
pub(crate) fn usual_sdk() -> TokenStream {
    fill("::ferretto", &[])
}

fn substitute(template: TokenStream, holes: &[(&str, &TokenStream)]) -> TokenStream {
    let mut filled = TokenStream::new();
    let mut tokens = template.into_iter();
    while let Some(mut token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '$' => {
                let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
                match holes.iter().find(|(hole, _)| *hole == name) {
                    Some((_, tokens)) => filled.extend((*tokens).clone()),
                    None => unreachable!("templates name no hole that is not there: {name}"),
                }
            }
            TokenTree::Group(group) => {
                let mut group = Group::new(group.delimiter(), substitute(group.stream(), holes));
                group.set_span(Span::mixed_site());
                filled.extend([TokenTree::Group(group)]);
            }
            _ => {
                token.set_span(Span::mixed_site());
                filled.extend([token]);
            }
        }
    }
    filled
}
