//! The options in the parentheses of `#[trace_function]`.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

use super::Function;
use crate::cursor::{Cursor, name_of};
use crate::error::Error;
use crate::template::{fill, usual_sdk};

/// How each option is written, its name first.
const OPTIONS: [&str; 13] = [
    "name = \"...\"",
    "args",
    "skip(...)",
    "skip_all",
    "ret",
    "err",
    "track = ...",
    "timestamp = ...",
    "flow = ...",
    "terminating_flow = ...",
    "correlation_id = ...",
    "callstack = ...",
    "crate = ...",
];

/// Options that have other names in similar macros.
const SYNONYMS: [(&str, &str); 4] = [
    ("fields", "args"),
    ("return", "ret"),
    ("error", "err"),
    ("skip_self", "skip_all"),
];

pub(super) struct Options {
    category: TokenStream,
    name: Option<TokenStream>,
    /// `, option = expression` for each option that is passed to the macro that records.
    passed_on: TokenStream,
    /// Whether, and which, parameters are arguments.
    parameters: Option<Parameters>,
    /// `args`, or `args(...)`.
    args: Option<Vec<Argument>>,
    /// The output.
    ret: Option<Format>,
    /// The error in the output.
    err: Option<Format>,
    /// The path of the SDK.
    sdk: Option<TokenStream>,
}

enum Parameters {
    AllBut(Vec<Ident>),
    None,
}

/// `"label" => value`
struct Argument {
    label: TokenStream,
    /// The label, if it comes of a name.
    name: Option<String>,
    value: TokenStream,
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Like an argument or, for an error, as it displays.
    Default,
    Debug,
    Display,
}

impl Options {
    pub(super) fn parse(arguments: TokenStream) -> Result<Self, Error> {
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
            parameters: None,
            args: None,
            ret: None,
            err: None,
            sdk: None,
        };
        while !cursor.at_end() {
            options.parse_option(&mut cursor)?;
            cursor.expect_comma()?;
        }
        Ok(options)
    }

    fn parse_option(&mut self, cursor: &mut Cursor) -> Result<(), Error> {
        let option = cursor.expect_ident(&format!("an option: {}", all_options()))?;
        let (keyword, span) = (option.to_string(), option.span());
        let Some(usage) = OPTIONS.into_iter().find(|usage| name_in(usage) == keyword) else {
            return Err(Error::new(span, no_such_option(&keyword)));
        };
        let takes_value = usage.contains(" = ");
        if cursor.take_punct('=') {
            if !takes_value {
                return Err(Error::new(
                    span,
                    format!("`{keyword}` takes no value: it is written `{usage}`"),
                ));
            }
            let value = cursor.take_expression();
            if value.is_empty() {
                return Err(Error::new(span, format!("`{keyword}` has no value")));
            }
            return self.set_value(option, value);
        }
        if takes_value {
            return Err(Error::new(span, format!("`{keyword}` takes a value: `{usage}`")));
        }
        let list = cursor.take_group(Delimiter::Parenthesis);
        match (keyword.as_str(), list) {
            ("args", list) => {
                let arguments = list.as_ref().map(parse_arguments).transpose()?;
                let is_all = arguments.is_none();
                set(&mut self.args, arguments.unwrap_or_default(), span, "args")?;
                if is_all && self.parameters.is_none() {
                    self.parameters = Some(Parameters::AllBut(Vec::new()));
                }
                Ok(())
            }
            ("skip", Some(list)) => self.set_parameters(Parameters::AllBut(parse_names(&list)?), span),
            ("skip_all", None) => self.set_parameters(Parameters::None, span),
            ("ret", format) => set(&mut self.ret, parse_format(format.as_ref(), "ret")?, span, "ret"),
            ("err", format) => set(&mut self.err, parse_format(format.as_ref(), "err")?, span, "err"),
            _ => Err(Error::new(span, format!("`{keyword}` is written `{usage}`"))),
        }
    }

    fn set_value(&mut self, option: Ident, value: TokenStream) -> Result<(), Error> {
        if option.to_string() == "name" {
            return set(&mut self.name, value, option.span(), "name");
        }
        if option.to_string() == "crate" {
            return set(&mut self.sdk, value, option.span(), "crate");
        }
        let option = TokenStream::from(TokenTree::from(option));
        self.passed_on.extend(fill(
            ", $option = $value",
            &[("option", &option), ("value", &value)],
        ));
        Ok(())
    }

    fn set_parameters(&mut self, parameters: Parameters, span: Span) -> Result<(), Error> {
        match &self.parameters {
            // The same as `args`.
            Some(Parameters::AllBut(skipped)) if skipped.is_empty() => {}
            None => {}
            Some(_) => {
                return Err(Error::new(
                    span,
                    "which parameters are left out was said before: by one of `skip(...)` and `skip_all`",
                ));
            }
        }
        self.parameters = Some(parameters);
        Ok(())
    }

    /// Returns the path of the SDK.
    pub(super) fn sdk(&self) -> TokenStream {
        self.sdk.clone().unwrap_or_else(usual_sdk)
    }

    /// Returns the arguments of the macro that records.
    pub(super) fn event(&self, function: &Function) -> Result<TokenStream, Error> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => TokenTree::from(Literal::string(&name_of(&function.name))).into(),
        };
        let recorded = self.arguments(&function.parameters)?;
        Ok(fill(
            "$category, $name $passed_on $recorded",
            &[
                ("category", &self.category),
                ("name", &name),
                ("passed_on", &self.passed_on),
                ("recorded", &recorded),
            ],
        ))
    }

    /// Returns `, "name" => expression` for each argument: the parameters, then the arguments of `args(...)`, which replace parameters of the same
    /// name.
    fn arguments(&self, parameters: &[Ident]) -> Result<TokenStream, Error> {
        let listed = self.args.as_deref().unwrap_or_default();
        let is = |one: &Ident, other: &Ident| one.to_string() == other.to_string();
        let mut arguments = TokenStream::new();
        if let Some(Parameters::AllBut(skipped)) = &self.parameters {
            for name in skipped {
                if !parameters.iter().any(|parameter| is(parameter, name)) {
                    return Err(Error::new(name.span(), format!("there is no parameter `{name}`")));
                }
            }
            for parameter in parameters {
                let name = name_of(parameter);
                let is_replaced = listed
                    .iter()
                    .any(|argument| argument.name.as_ref() == Some(&name));
                if !is_replaced && !skipped.iter().any(|skipped| is(skipped, parameter)) {
                    let value = TokenTree::from(parameter.clone()).into();
                    arguments.extend(Argument::named(parameter, value).tokens());
                }
            }
        }
        arguments.extend(listed.iter().map(Argument::tokens));
        Ok(arguments)
    }

    /// Statements that record `output`, a reference, in `event`, if the options ask for it.
    pub(super) fn output(&self) -> Option<TokenStream> {
        let sdk = self.sdk();
        let ret = self.ret.map(|format| format.of_output(&sdk));
        let err = self.err.map(|format| format.of_error(&sdk));
        Some(match (ret, err) {
            (None, None) => return None,
            (Some(ret), None) => ret,
            (None, Some(err)) => fill(
                "if let ::core::result::Result::Err(error) = output { $err }",
                &[("err", &err)],
            ),
            (Some(ret), Some(err)) => fill(
                "match output {
                    ::core::result::Result::Ok(output) => { $ret }
                    ::core::result::Result::Err(error) => { $err }
                }",
                &[("ret", &ret), ("err", &err)],
            ),
        })
    }
}

/// Sets an option that was not set before.
fn set<T>(option: &mut Option<T>, value: T, span: Span, name: &str) -> Result<(), Error> {
    if option.replace(value).is_some() {
        return Err(Error::new(span, format!("there are two of `{name}`")));
    }
    Ok(())
}

impl Format {
    fn of_output(self, sdk: &TokenStream) -> TokenStream {
        let template = match self {
            Format::Default => "event.annotation(\"return\", output);",
            Format::Debug => "event.annotation(\"return\", $sdk::debug_annotation::debug(output));",
            Format::Display => "event.annotation(\"return\", $sdk::debug_annotation::display(output));",
        };
        fill(template, &[("sdk", sdk)])
    }

    fn of_error(self, sdk: &TokenStream) -> TokenStream {
        let template = match self {
            Format::Default | Format::Display => {
                "$sdk::private::mark_error(event, ::core::format_args!(\"{}\", error));"
            }
            Format::Debug => "$sdk::private::mark_error(event, ::core::format_args!(\"{:?}\", error));",
        };
        fill(template, &[("sdk", sdk)])
    }
}

impl Argument {
    fn named(name: &Ident, value: TokenStream) -> Self {
        let name = name_of(name);
        Self {
            label: TokenTree::from(Literal::string(&name)).into(),
            name: Some(name),
            value,
        }
    }

    /// `, "label" => value`. The macros take a reference to the value by themselves.
    fn tokens(&self) -> TokenStream {
        fill(
            ", $label => $value",
            &[("label", &self.label), ("value", &self.value)],
        )
    }
}

/// Parses `a, self.b, "c" => expression`.
fn parse_arguments(list: &Group) -> Result<Vec<Argument>, Error> {
    let mut cursor = Cursor::inside(list);
    let mut arguments = Vec::new();
    while !cursor.at_end() {
        let span = cursor.span();
        if let Some(label) = cursor.take_literal() {
            if !cursor.take_fat_arrow() {
                return Err(Error::new(cursor.span(), "expected `=>` and a value"));
            }
            let text = label.to_string();
            arguments.push(Argument {
                name: text
                    .strip_prefix('"')
                    .and_then(|text| text.strip_suffix('"'))
                    .map(str::to_owned),
                label: TokenTree::from(label).into(),
                value: cursor.take_expression(),
            });
        } else {
            let place = cursor.take_expression();
            let Some(name) = last_field(place.clone()) else {
                return Err(Error::new(span, "give this a name: `\"name\" => expression`"));
            };
            arguments.push(Argument::named(&name, place));
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
        // The fields of tuples have numbers as names, but an argument called `0` would mean nothing.
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

/// Parses the parentheses of `ret(...)` and `err(...)`, if there are any.
fn parse_format(group: Option<&Group>, option: &str) -> Result<Format, Error> {
    let Some(group) = group else {
        return Ok(Format::Default);
    };
    let mut cursor = Cursor::inside(group);
    let span = cursor.span();
    let format = if cursor.take_keyword("Debug") {
        Format::Debug
    } else if cursor.take_keyword("Display") {
        Format::Display
    } else {
        Format::Default
    };
    if format == Format::Default || !cursor.at_end() {
        let message = format!("expected `{option}`, `{option}(Debug)` or `{option}(Display)`");
        return Err(Error::new(span, message));
    }
    Ok(format)
}

/// The name of an option, of how it is written.
fn name_in(usage: &'static str) -> &'static str {
    usage.split_once([' ', '(']).map_or(usage, |(name, _)| name)
}

fn all_options() -> String {
    let quoted = OPTIONS.map(|usage| format!("`{usage}`"));
    let (last, others) = quoted
        .split_last()
        .map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
    format!("{} or {last}", others.join(", "))
}

/// Says which option may have been meant.
fn no_such_option(keyword: &str) -> String {
    let synonym = SYNONYMS.into_iter().find(|(other, _)| *other == keyword);
    let similar = || {
        let names = OPTIONS.map(name_in).into_iter();
        names
            .map(|name| (distance(keyword, name), name))
            .filter(|(distance, name)| *distance <= 1.max(name.len() / 3))
            .min()
    };
    match synonym
        .map(|(_, name)| name)
        .or_else(|| similar().map(|(_, name)| name))
    {
        Some(name) => format!("there is no option `{keyword}`: did you mean `{name}`?"),
        None => format!("there is no option `{keyword}`: there are {}", all_options()),
    }
}

/// How many letters have to be added, removed, replaced or swapped with the next one to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let is_swap = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                if is_swap {
                    best.min(rows[i - 2][j - 2] + 1)
                } else {
                    best
                }
            };
        }
    }
    rows[one.len()][other.len()]
}
