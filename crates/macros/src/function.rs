//! `#[trace_function]`: a statement at the top of a function's body that begins its slice.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

use crate::cursor::{Cursor, name_of};
use crate::error::Error;
use crate::template::fill;

/// The function with its slice; with an error, the function as it was beside the error, lest its callers be reported as well.
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
    let name = match options.name {
        Some(name) => name,
        None => TokenTree::from(Literal::string(&name_of(&function.name))).into(),
    };
    let recorded = options.recorded.arguments(&function.parameters)?;
    let begin = match function.kind {
        Kind::Sync => "::ferretto::trace_event!($category, $name $passed_on $recorded);",
        Kind::Async | Kind::BoxedAsync => {
            "let _slice = ::ferretto::trace_async!($category, $name $passed_on $recorded);"
        }
    };
    let begin = fill(
        begin,
        &[
            ("category", &options.category),
            ("name", &name),
            ("passed_on", &options.passed_on),
            ("recorded", &recorded),
        ],
    );
    let body = match function.kind {
        Kind::Sync | Kind::Async => insert(&function.body, begin),
        Kind::BoxedAsync => in_last_group(&function.body, |arguments| {
            in_last_group(arguments, |block| insert(block, begin))
        }),
    };
    let mut function = function.declaration;
    function.extend([TokenTree::from(body)]);
    Ok(function)
}

/// A function, of which only the body is changed.
struct Function {
    /// Everything before the body.
    declaration: TokenStream,
    name: Ident,
    /// Those that have a name. `self` is not among them.
    parameters: Vec<Ident>,
    kind: Kind,
    body: Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sync,
    Async,
    /// It does nothing but return `Box::pin(async move { ... })`, as `#[async_trait]` makes of an `async fn`.
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

/// `group` with what `change` makes of its last group, which it has.
fn in_last_group(group: &Group, change: impl FnOnce(&Group) -> Group) -> Group {
    let mut tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    if let Some(TokenTree::Group(last)) = tokens.last_mut() {
        *last = change(last);
    }
    with_stream(group, tokens.into_iter().collect())
}

/// `block` with `statement` in front, but behind attributes of the block itself.
fn insert(block: &Group, statement: TokenStream) -> Group {
    let mut cursor = Cursor::inside(block);
    let mut stream = cursor.take_inner_attributes();
    stream.extend(statement);
    stream.extend(cursor.rest());
    with_stream(block, stream)
}

fn with_stream(group: &Group, stream: TokenStream) -> Group {
    let mut changed = Group::new(group.delimiter(), stream);
    changed.set_span(group.span());
    changed
}

/// What stands in the parentheses of the attribute.
struct Options {
    category: TokenStream,
    name: Option<TokenStream>,
    /// `, option = expression` for each option that is of the macro that records.
    passed_on: TokenStream,
    recorded: Recorded,
}

/// The arguments of the slice.
enum Recorded {
    Nothing,
    /// All parameters but these.
    Parameters {
        skipped: Vec<Ident>,
    },
    /// `, "name" => expression` for each.
    Expressions(TokenStream),
}

impl Options {
    fn parse(arguments: TokenStream) -> Result<Self, Error> {
        let mut cursor = Cursor::new(arguments, Span::call_site());
        let category = cursor.take_expression();
        if category.is_empty() {
            return Err(Error::new(
                cursor.span(),
                "expected a category: `#[trace_function(\"category\")]`",
            ));
        }
        cursor.expect_comma()?;
        let mut options = Self {
            category,
            name: None,
            passed_on: TokenStream::new(),
            recorded: Recorded::Nothing,
        };
        while !cursor.at_end() {
            options.parse_option(&mut cursor)?;
            cursor.expect_comma()?;
        }
        Ok(options)
    }

    fn parse_option(&mut self, cursor: &mut Cursor) -> Result<(), Error> {
        const OPTIONS: &str =
            "`name = \"...\"`, `args`, `args(...)`, `skip(...)` or an option of `trace_event!`";
        let option = cursor.expect_ident(OPTIONS)?;
        let (keyword, span) = (option.to_string(), option.span());
        if cursor.take_punct('=') {
            let value = cursor.take_expression();
            if value.is_empty() {
                return Err(Error::new(span, format!("`{keyword}` has no value")));
            }
            if keyword != "name" {
                let option = TokenStream::from(TokenTree::from(option));
                self.passed_on.extend(fill(
                    ", $option = $value",
                    &[("option", &option), ("value", &value)],
                ));
            } else if self.name.replace(value).is_some() {
                return Err(Error::new(span, "the slice has a name already"));
            }
            return Ok(());
        }
        let list = cursor.take_group(Delimiter::Parenthesis);
        let recorded = match (keyword.as_str(), list) {
            ("args", None) => Recorded::Parameters { skipped: Vec::new() },
            ("args", Some(list)) => Recorded::Expressions(parse_arguments(&list)?),
            ("skip", Some(list)) => Recorded::Parameters {
                skipped: parse_names(&list)?,
            },
            _ => return Err(Error::new(span, format!("expected {OPTIONS}"))),
        };
        if !matches!(self.recorded, Recorded::Nothing) {
            return Err(Error::new(
                span,
                "what is recorded was said before: it is one of `args` and `skip`",
            ));
        }
        self.recorded = recorded;
        Ok(())
    }
}

impl Recorded {
    /// `, "name" => expression` for each argument.
    fn arguments(self, parameters: &[Ident]) -> Result<TokenStream, Error> {
        let skipped = match self {
            Recorded::Nothing => return Ok(TokenStream::new()),
            Recorded::Expressions(arguments) => return Ok(arguments),
            Recorded::Parameters { skipped } => skipped,
        };
        let is = |one: &Ident, other: &Ident| one.to_string() == other.to_string();
        for name in &skipped {
            if !parameters.iter().any(|parameter| is(parameter, name)) {
                return Err(Error::new(name.span(), format!("there is no parameter `{name}`")));
            }
        }
        Ok(parameters
            .iter()
            .filter(|parameter| !skipped.iter().any(|name| is(name, parameter)))
            .map(|parameter| argument(parameter, TokenTree::from(parameter.clone()).into()))
            .collect())
    }
}

fn argument(name: &Ident, value: TokenStream) -> TokenStream {
    labelled(&TokenTree::from(Literal::string(&name_of(name))).into(), &value)
}

/// `, "name" => value`. The macros take a reference to the value by themselves.
fn labelled(label: &TokenStream, value: &TokenStream) -> TokenStream {
    fill(", $label => $value", &[("label", label), ("value", value)])
}

/// Parses `a, self.b, "c" => expression`.
fn parse_arguments(list: &Group) -> Result<TokenStream, Error> {
    let mut cursor = Cursor::inside(list);
    let mut arguments = TokenStream::new();
    while !cursor.at_end() {
        let span = cursor.span();
        if let Some(label) = cursor.take_literal() {
            if !cursor.take_fat_arrow() {
                return Err(Error::new(cursor.span(), "expected `=>` and a value"));
            }
            let label = TokenTree::from(label).into();
            let value = cursor.take_expression();
            arguments.extend(fill(
                ", $label => $value",
                &[("label", &label), ("value", &value)],
            ));
        } else {
            let place = cursor.take_expression();
            let Some(name) = last_field(place.clone()) else {
                return Err(Error::new(span, "give this a name: `\"name\" => expression`"));
            };
            arguments.extend(argument(&name, place));
        }
        cursor.expect_comma()?;
    }
    Ok(arguments)
}

/// The `c` of `a.b.c` or of `c`.
fn last_field(place: TokenStream) -> Option<Ident> {
    let mut cursor = Cursor::new(place, Span::call_site());
    let mut last = cursor.take_ident();
    while cursor.take_punct('.') {
        last = cursor.take_ident();
        // Tuples have fields whose names are numbers, but an argument called `0` says nothing.
        if last.is_none() {
            cursor.take_literal()?;
        }
    }
    last.filter(|_| cursor.at_end())
}

/// Parses `a, b`.
fn parse_names(list: &Group) -> Result<Vec<Ident>, Error> {
    let mut cursor = Cursor::inside(list);
    let mut names = Vec::new();
    while !cursor.at_end() {
        names.push(cursor.expect_ident("the name of a parameter")?);
        cursor.expect_comma()?;
    }
    Ok(names)
}
