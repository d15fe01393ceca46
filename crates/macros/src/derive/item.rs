//! The derive macro's knowledge of the type that it stands on.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

use super::label_of;
use super::options::{How, Options, Target};
use crate::cursor::{Cursor, is_punct};
use crate::error::Error;
use crate::template::usual_sdk;

/// A struct or an enum.
pub(super) struct Item {
    pub(super) name: Ident,
    pub(super) generics: Generics,
    /// The contents of the where clause, with a comma behind them.
    pub(super) conditions: TokenStream,
    pub(super) body: Body,
    pub(super) how: How,
    /// The explicit bounds, which replace inferred ones.
    pub(super) bounds: Option<TokenStream>,
    /// The path of the SDK.
    pub(super) sdk: TokenStream,
}

/// The generic parameters of a type.
#[derive(Default)]
pub(super) struct Generics {
    /// The parameters as an impl declares them: with bounds, without defaults.
    pub(super) parameters: TokenStream,
    /// The arguments as the type is named with them.
    pub(super) arguments: TokenStream,
    /// The names of type parameters.
    pub(super) types: Vec<Ident>,
}

pub(super) enum Body {
    Struct(Fields),
    Enum(Vec<Variant>),
}

pub(super) struct Variant {
    pub(super) name: Ident,
    /// A string literal.
    pub(super) label: TokenTree,
    pub(super) fields: Fields,
}

pub(super) struct Fields {
    pub(super) shape: Shape,
    all: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Unit,
    Named,
    Tuple,
}

pub(super) struct Field {
    /// Its name or index in a pattern.
    pub(super) member: TokenStream,
    /// The variable that a pattern binds it to. It has the span of the field's type, for error messages.
    pub(super) binding: TokenStream,
    /// A string literal.
    pub(super) label: TokenTree,
    pub(super) ty: TokenStream,
    pub(super) how: How,
}

impl Item {
    pub(super) fn parse(item: TokenStream) -> Result<Self, Error> {
        let mut cursor = Cursor::new(item, Span::call_site());
        let options = Options::parse(cursor.take_attributes(), Target::Type)?;
        cursor.skip_visibility();
        let is_enum = cursor.take_keyword("enum");
        if !is_enum && !cursor.take_keyword("struct") {
            return Err(Error::new(
                cursor.span(),
                "only structs and enums can be debug annotations",
            ));
        }
        let name = cursor.expect_ident("the name of the type")?;
        let generics = match cursor.take_angle_brackets() {
            Some(parameters) => Generics::parse(parameters)?,
            None => Generics::default(),
        };
        let mut conditions = parse_where(&mut cursor);
        let body = match cursor.next() {
            Some(TokenTree::Group(group)) if is_enum => Body::Enum(parse_variants(&group)?),
            Some(TokenTree::Group(group)) => Body::Struct(Fields::parse(&group)?),
            _ => Body::Struct(Fields::none()),
        };
        if conditions.is_empty() {
            // The where clause of a tuple struct comes behind the fields.
            conditions = parse_where(&mut cursor);
        }
        Ok(Self {
            name,
            generics,
            conditions,
            body,
            how: options.how,
            bounds: options.bounds,
            sdk: options.sdk.unwrap_or_else(usual_sdk),
        })
    }
}

impl Generics {
    fn parse(parameters: TokenStream) -> Result<Self, Error> {
        let mut generics = Self::default();
        let mut cursor = Cursor::new(parameters, Span::call_site());
        let ends = |token: &TokenTree| is_punct(Some(token), ',') || is_punct(Some(token), '=');
        let comma: TokenStream = punct(',');
        while !cursor.at_end() {
            cursor.take_attributes();
            if cursor.take_keyword("const") {
                let declaration = cursor.take_type(ends);
                generics
                    .parameters
                    .extend(TokenStream::from(TokenTree::from(Ident::new(
                        "const",
                        Span::call_site(),
                    ))));
                generics.arguments.extend(declaration.clone().into_iter().next());
                generics.parameters.extend(declaration);
            } else {
                let declaration = cursor.take_type(ends);
                let mut tokens = declaration.clone().into_iter();
                match tokens.next() {
                    Some(TokenTree::Ident(name)) => {
                        generics.types.push(name.clone());
                        generics.arguments.extend([TokenTree::from(name)]);
                    }
                    // A lifetime is a quote and a name.
                    Some(quote) => generics
                        .arguments
                        .extend([Some(quote), tokens.next()].into_iter().flatten()),
                    None => return Err(Error::new(cursor.span(), "expected a generic parameter")),
                }
                generics.parameters.extend(declaration);
            }
            if cursor.take_punct('=') {
                cursor.take_type(|token| is_punct(Some(token), ','));
            }
            cursor.expect_comma()?;
            generics.parameters.extend(comma.clone());
            generics.arguments.extend(comma.clone());
        }
        Ok(generics)
    }
}

impl Fields {
    fn none() -> Self {
        Self {
            shape: Shape::Unit,
            all: Vec::new(),
        }
    }

    fn parse(group: &Group) -> Result<Self, Error> {
        let shape = match group.delimiter() {
            Delimiter::Brace => Shape::Named,
            _ => Shape::Tuple,
        };
        let mut all = Vec::new();
        let mut cursor = Cursor::inside(group);
        while !cursor.at_end() {
            let options = Options::parse(cursor.take_attributes(), Target::Field)?;
            cursor.skip_visibility();
            let (member, label) = match shape {
                Shape::Named => {
                    let name = cursor.expect_ident("the name of a field")?;
                    cursor.take_punct(':');
                    (TokenTree::from(name.clone()), label_of(&name))
                }
                _ => {
                    let mut index = Literal::usize_unsuffixed(all.len());
                    index.set_span(cursor.span());
                    (index.into(), Literal::string(&all.len().to_string()).into())
                }
            };
            let span = cursor.span();
            let ty = cursor.take_type(|token| is_punct(Some(token), ','));
            cursor.expect_comma()?;
            let binding = Ident::new(
                &format!("field_{}", all.len()),
                Span::mixed_site().located_at(span),
            );
            all.push(Field {
                member: member.into(),
                binding: TokenTree::from(binding).into(),
                label: options.rename.unwrap_or(label),
                how: if is_phantom(&ty) { How::Skip } else { options.how },
                ty,
            });
        }
        Ok(Self { shape, all })
    }

    /// The fields that are not skipped.
    pub(super) fn recorded(&self) -> impl Iterator<Item = &Field> {
        self.all.iter().filter(|field| !matches!(field.how, How::Skip))
    }

    /// The field that this is nothing but a wrapper of: the only one, and without a name.
    pub(super) fn single(&self) -> Option<&Field> {
        match (self.shape, self.all.as_slice()) {
            (Shape::Tuple, [field]) if !matches!(field.how, How::Skip) => Some(field),
            _ => None,
        }
    }
}

fn parse_variants(group: &Group) -> Result<Vec<Variant>, Error> {
    let mut variants = Vec::new();
    let mut cursor = Cursor::inside(group);
    while !cursor.at_end() {
        let options = Options::parse(cursor.take_attributes(), Target::Variant)?;
        cursor.skip_visibility();
        let name = cursor.expect_ident("the name of a variant")?;
        let fields = match cursor.peek() {
            Some(TokenTree::Group(group)) => Fields::parse(group)?,
            _ => Fields::none(),
        };
        if fields.shape != Shape::Unit {
            cursor.next();
        }
        if cursor.take_punct('=') {
            cursor.take_expression();
        }
        cursor.expect_comma()?;
        let label = options.rename.unwrap_or_else(|| label_of(&name));
        variants.push(Variant { name, label, fields });
    }
    Ok(variants)
}

/// Takes a where clause, if it is there; the conditions, with a comma behind the last.
fn parse_where(cursor: &mut Cursor) -> TokenStream {
    if !cursor.take_keyword("where") {
        return TokenStream::new();
    }
    let is_end = |token: &TokenTree| {
        is_punct(Some(token), ';')
            || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
    };
    let mut conditions = cursor.take_type(is_end);
    let last = conditions.clone().into_iter().last();
    if last.is_some() && !is_punct(last.as_ref(), ',') {
        conditions.extend(punct(','));
    }
    conditions
}

/// Whether this is `PhantomData<...>`, which there is nothing to write of.
fn is_phantom(ty: &TokenStream) -> bool {
    let path = ty
        .clone()
        .into_iter()
        .take_while(|token| !is_punct(Some(token), '<'));
    matches!(path.last(), Some(TokenTree::Ident(name)) if name.to_string() == "PhantomData")
}

fn punct(char: char) -> TokenStream {
    TokenTree::from(proc_macro::Punct::new(char, proc_macro::Spacing::Alone)).into()
}
