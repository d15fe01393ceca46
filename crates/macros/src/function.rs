//! `#[trace_function]`: a statement at the top of a function's body that begins its slice. The body of a function that is asynchronous, or whose
//! output is recorded, goes into a block of its own, within the slice.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::cursor::Cursor;
use crate::error::Error;
use crate::template::fill;

mod options;

use options::Options;

/// The function with its slice. With an error, the original function beside the error, so that its callers are not reported as well.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    match trace(arguments, item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let mut tokens = error.into_tokens();
            tokens.extend(item);
            tokens
        }
    }
}

fn trace(arguments: TokenStream, item: TokenStream) -> Result<TokenStream, Error> {
    let function = Function::parse(item)?;
    let options = Options::parse(arguments)?;
    let event = options.event(&function)?;
    let output = options.output();
    let body = match function.kind {
        Kind::Sync => recorded(&function.body, |body| match &output {
            None => fill(
                "::ferretto::trace_event!($event); $body",
                &[("event", &event), ("body", &body.stream())],
            ),
            Some(output) => fill(
                "let slice = ::ferretto::trace_slice!($event);
                let output = ::ferretto::private::call(move || $returned $body);
                ::ferretto::Slice::end_with(slice, |event| { let output = &output; $output });
                output",
                &[
                    ("event", &event),
                    ("returned", &function.returned.of_closure()),
                    ("body", &TokenTree::from(body).into()),
                    ("output", output),
                ],
            ),
        }),
        Kind::Async => in_slice(
            &function.body,
            &event,
            &function.returned.told_inside(),
            output.as_ref(),
        ),
        Kind::BoxedAsync => in_last_group(&function.body, |arguments| {
            in_last_group(arguments, |block| {
                in_slice(block, &event, &TokenStream::new(), output.as_ref())
            })
        }),
    };
    let mut function = function.declaration;
    function.extend([TokenTree::from(body)]);
    Ok(function)
}

/// The body of something asynchronous: a future, which is polled in the slice.
fn in_slice(body: &Group, event: &TokenStream, told: &TokenStream, output: Option<&TokenStream>) -> Group {
    recorded(body, |body| {
        let with_output =
            output.map(|output| fill(".with_output(|output, event| { $output })", &[("output", output)]));
        fill(
            "let slice = ::ferretto::trace_async!($event);
            ::ferretto::future::in_slice(slice, async move { $told $body }) $with_output .await",
            &[
                ("event", event),
                ("told", told),
                ("body", &body.stream()),
                ("with_output", &with_output.unwrap_or_default()),
            ],
        )
    })
}

/// A function, of which only the body is changed.
struct Function {
    /// Everything before the body.
    declaration: TokenStream,
    name: Ident,
    /// The parameters that have a name, without `self`.
    parameters: Vec<Ident>,
    returned: Returned,
    kind: Kind,
    body: Group,
}

/// The type behind the arrow, if it is one that can be written elsewhere too: not with `impl Trait` in it.
struct Returned(Option<TokenStream>);

impl Returned {
    fn parse(cursor: &mut Cursor) -> Self {
        if !(cursor.take_punct('-') && cursor.take_punct('>')) {
            return Self(None);
        }
        let returned = cursor.take_type(|token| match token {
            TokenTree::Ident(ident) => ident.to_string() == "where",
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            _ => false,
        });
        Self(Some(returned).filter(|returned| !mentions(returned.clone(), "impl")))
    }

    /// `-> Type`
    fn of_closure(&self) -> TokenStream {
        let arrow = |returned| fill("-> $returned", &[("returned", returned)]);
        self.0.as_ref().map(arrow).unwrap_or_default()
    }

    /// A statement that tells the compiler the type of an `async` block, for which there is no syntax.
    fn told_inside(&self) -> TokenStream {
        let is_never = |returned: &&TokenStream| returned.to_string() != "!";
        let told = |returned| {
            fill(
                "#[allow(unknown_lints, unreachable_code, clippy::all, clippy::pedantic)]
                if false { let output: $returned = loop {}; return output; }",
                &[("returned", returned)],
            )
        };
        self.0.as_ref().filter(is_never).map(told).unwrap_or_default()
    }
}

fn mentions(tokens: TokenStream, word: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident.to_string() == word,
        TokenTree::Group(group) => mentions(group.stream(), word),
        _ => false,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sync,
    Async,
    /// A function that only returns `Box::pin(async move { ... })`: the output of `#[async_trait]` for an `async fn`.
    BoxedAsync,
}

impl Function {
    fn parse(item: TokenStream) -> Result<Self, Error> {
        let mut tokens: Vec<TokenTree> = item.clone().into_iter().collect();
        let last = tokens.pop();
        let mut cursor = Cursor::new(item, Span::call_site());
        cursor.take_attributes();
        let mut is_async = false;
        while !cursor.take_keyword("fn") {
            is_async |= cursor.is_keyword("async");
            if cursor.is_keyword("const") {
                let message = "a `const fn` cannot be recorded: what runs when compiling has no time";
                return Err(Error::new(cursor.span(), message));
            }
            if cursor.next().is_none() {
                return Err(Error::new(
                    Span::call_site(),
                    "`trace_function` stands on functions only",
                ));
            }
        }
        let name = cursor.expect_ident("the name of the function")?;
        cursor.take_angle_brackets();
        let Some(parameters) = cursor.take_group(Delimiter::Parenthesis) else {
            return Err(Error::new(
                cursor.span(),
                "expected the parameters of the function",
            ));
        };
        let returned = Returned::parse(&mut cursor);
        let Some(TokenTree::Group(body)) = last else {
            let message = "a function without a body cannot be recorded: put this on its implementations";
            return Err(Error::new(name.span(), message));
        };
        let kind = if is_async {
            Kind::Async
        } else if is_boxed_future(&body) {
            Kind::BoxedAsync
        } else {
            Kind::Sync
        };
        let parameters = parse_parameters(&parameters);
        Ok(Self {
            declaration: tokens.into_iter().collect(),
            name,
            parameters,
            returned,
            kind,
            body,
        })
    }
}

fn parse_parameters(group: &Group) -> Vec<Ident> {
    let mut parameters = Vec::new();
    let mut cursor = Cursor::inside(group);
    while !cursor.at_end() {
        cursor.take_attributes();
        cursor.take_keyword("mut");
        let name = cursor.take_ident();
        let is_whole_pattern = cursor.is_punct(':');
        cursor.skip_parameter();
        let named = name.filter(|name| !["self", "_"].contains(&name.to_string().as_str()));
        parameters.extend(named.filter(|_| is_whole_pattern));
    }
    parameters
}

/// Whether `body` is `{ ...pin(async move { ... }) }`.
fn is_boxed_future(body: &Group) -> bool {
    let tokens: Vec<TokenTree> = body.stream().into_iter().collect();
    let [.., TokenTree::Ident(pin), TokenTree::Group(argument)] = tokens.as_slice() else {
        return false;
    };
    let mut argument = Cursor::inside(argument);
    let is_async = pin.to_string() == "pin" && argument.take_keyword("async");
    argument.take_keyword("move");
    is_async && argument.take_group(Delimiter::Brace).is_some() && argument.at_end()
}

/// Replaces the last group in `group`, which must have one, by the result of `change`.
fn in_last_group(group: &Group, change: impl FnOnce(&Group) -> Group) -> Group {
    let mut tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    if let Some(TokenTree::Group(last)) = tokens.last_mut() {
        *last = change(last);
    }
    with_stream(group, tokens.into_iter().collect())
}

/// Passes `block` without its inner attributes to `record`, and puts the attributes in front of the result.
fn recorded(block: &Group, record: impl FnOnce(Group) -> TokenStream) -> Group {
    let mut cursor = Cursor::inside(block);
    let mut stream = cursor.take_inner_attributes();
    stream.extend(record(with_stream(block, cursor.rest())));
    with_stream(block, stream)
}

fn with_stream(group: &Group, stream: TokenStream) -> Group {
    let mut changed = Group::new(group.delimiter(), stream);
    changed.set_span(group.span());
    changed
}
