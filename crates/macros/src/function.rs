//! `#[trace_function]`: a statement at the top of a function's body that begins its slice. The body of a function that is asynchronous, or whose
//! output is recorded, goes into a block of its own, within the slice; so does the block of a function that returns one.

use proc_macro::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};

use crate::cursor::{Cursor, is_punct};
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
    let sdk = options.sdk();
    let future = Future {
        sdk: &sdk,
        event: &event,
        output: output.as_ref(),
    };
    let body = match function.kind {
        Kind::Sync => recorded(&function.body, |body| match &output {
            None => fill(
                "$sdk::trace_event!($event); $body",
                &[("sdk", &sdk), ("event", &event), ("body", &body.stream())],
            ),
            Some(output) => fill(
                "let slice = $sdk::trace_slice!($event);
                let output = $sdk::private::call(move || $returned $body);
                $sdk::Slice::end_with(slice, |event| { let output = &output; $output });
                output",
                &[
                    ("sdk", &sdk),
                    ("event", &event),
                    ("returned", &function.returned.of_closure()),
                    ("body", &TokenTree::from(body).into()),
                    ("output", output),
                ],
            ),
        }),
        Kind::Async => recorded(&function.body, |body| {
            future.with_slice(
                &future.begun(),
                Block::Moving,
                &function.returned.told_inside(),
                &body,
            )
        }),
        Kind::Block(block) => future.at_end_of(&function.body, block.tokens(), |body, slice| {
            in_last_group(body, |body| future.of_block(body, block, slice))
        }),
        Kind::PinnedBlock(block) => future.at_end_of(&function.body, 1, |body, slice| {
            in_last_group(body, |arguments| {
                in_last_group(arguments, |body| future.of_block(body, block, slice))
            })
        }),
    };
    let mut function = function.declaration;
    function.extend([TokenTree::from(body)]);
    Ok(function)
}

/// How the future of a function is recorded.
struct Future<'a> {
    /// The path of the SDK.
    sdk: &'a TokenStream,
    event: &'a TokenStream,
    output: Option<&'a TokenStream>,
}

impl Future<'_> {
    /// An expression that begins the slice.
    fn begun(&self) -> TokenStream {
        fill(
            "$sdk::trace_async!($event)",
            &[("sdk", self.sdk), ("event", self.event)],
        )
    }

    /// Statements of something asynchronous: a future, which is polled in `slice`.
    fn with_slice(&self, slice: &TokenStream, block: Block, told: &TokenStream, body: &Group) -> TokenStream {
        let with_output = self
            .output
            .map(|output| fill(".with_output(|output, event| { $output })", &[("output", output)]));
        fill(
            "let slice = $slice;
            $sdk::future::in_slice(slice, async $moving { $told $body }) $with_output .await",
            &[
                ("sdk", self.sdk),
                ("slice", slice),
                ("moving", &block.moving()),
                ("told", told),
                ("body", &body.stream()),
                ("with_output", &with_output.unwrap_or_default()),
            ],
        )
    }

    fn of_block(&self, body: &Group, block: Block, slice: &TokenStream) -> Group {
        recorded(body, |body| {
            self.with_slice(slice, block, &TokenStream::new(), &body)
        })
    }

    /// The body of a function whose last `tokens` are its future. `record` is given an expression that has or begins the slice.
    ///
    /// The slice begins when the future is first polled, unless statements in front of the future use what the event does: they may move it.
    fn at_end_of(
        &self,
        body: &Group,
        tokens: usize,
        record: impl FnOnce(&Group, &TokenStream) -> Group,
    ) -> Group {
        let all = without_inner_attributes(body);
        let statements = &all[..all.len().saturating_sub(tokens)];
        if !shares_name(statements, self.event) {
            return record(body, &self.begun());
        }
        recorded(&record(body, &fill("slice_of_call", &[])), |body| {
            fill(
                "let slice_of_call = $begun; $body",
                &[("begun", &self.begun()), ("body", &body.stream())],
            )
        })
    }
}

fn without_inner_attributes(body: &Group) -> Vec<TokenTree> {
    let mut cursor = Cursor::inside(body);
    cursor.take_inner_attributes();
    cursor.rest().into_iter().collect()
}

/// Whether both have an identifier in common.
fn shares_name(one: &[TokenTree], other: &TokenStream) -> bool {
    one.iter().any(|token| match token {
        TokenTree::Ident(ident) => mentions(other.clone(), &ident.to_string()),
        TokenTree::Group(group) => shares_name(&group.stream().into_iter().collect::<Vec<_>>(), other),
        _ => false,
    })
}

fn is_braces(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
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
    /// A function that ends with `async move { ... }`.
    Block(Block),
    /// A function that ends with `Box::pin(async move { ... })`: the output of `#[async_trait]` for an `async fn`.
    PinnedBlock(Block),
}

/// An asynchronous block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// `async { ... }`
    Borrowing,
    /// `async move { ... }`
    Moving,
}

impl Block {
    /// Whether `tokens` end with a block.
    fn at_end_of(tokens: &[TokenTree]) -> Option<Self> {
        let is_word = |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(ident) if ident.to_string() == word);
        match tokens {
            [.., r#async, r#move, body]
                if is_word(r#async, "async") && is_word(r#move, "move") && is_braces(body) =>
            {
                Some(Block::Moving)
            }
            [.., r#async, body] if is_word(r#async, "async") && is_braces(body) => Some(Block::Borrowing),
            _ => None,
        }
    }

    fn tokens(self) -> usize {
        match self {
            Block::Borrowing => 2,
            Block::Moving => 3,
        }
    }

    fn moving(self) -> TokenStream {
        match self {
            Block::Borrowing => TokenStream::new(),
            Block::Moving => fill("move", &[]),
        }
    }
}

/// The tokens in front of the block at the end of `tokens`, if there is one.
fn before_block(tokens: &[TokenTree]) -> &[TokenTree] {
    let length = Block::at_end_of(tokens).map_or(0, Block::tokens);
    &tokens[..tokens.len() - length]
}

impl Function {
    fn parse(item: TokenStream) -> Result<Self, Error> {
        let mut tokens: Vec<TokenTree> = item.into_iter().collect();
        let last = tokens.pop().map(unwrapped);
        let mut cursor = Cursor::new(tokens.iter().cloned().collect(), Span::call_site());
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
        let kind = if is_async { Kind::Async } else { kind_of_end(&body) };
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

/// The block that a macro was given as `$body:block`, which comes wrapped up.
fn unwrapped(token: TokenTree) -> TokenTree {
    if let TokenTree::Group(group) = &token
        && group.delimiter() == Delimiter::None
    {
        let mut inside = Cursor::inside(group);
        if let Some(only) = inside.next()
            && inside.at_end()
        {
            return unwrapped(only);
        }
    }
    token
}

/// The kind of a function that is not `async` itself.
fn kind_of_end(body: &Group) -> Kind {
    let tokens = without_inner_attributes(body);
    if let Some(block) = Block::at_end_of(&tokens) {
        // Behind anything else it is part of an expression: the body of a closure, say.
        let is_whole = match before_block(&tokens).last() {
            None => true,
            Some(before) => is_punct(Some(before), ';') || is_braces(before),
        };
        return if is_whole { Kind::Block(block) } else { Kind::Sync };
    }
    if let [.., TokenTree::Ident(pin), TokenTree::Group(argument)] = tokens.as_slice()
        && pin.to_string() == "pin"
    {
        let argument: Vec<TokenTree> = argument.stream().into_iter().collect();
        if let Some(block) = Block::at_end_of(&argument)
            && before_block(&argument).is_empty()
        {
            return Kind::PinnedBlock(block);
        }
    }
    Kind::Sync
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
