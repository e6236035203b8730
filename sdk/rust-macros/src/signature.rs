//! What a block's function must look like, and what is read off it.

use syn::ext::IdentExt as _;
use syn::{
    Attribute, Expr, ExprLit, FnArg, GenericArgument, Ident, ItemFn, Lit, Meta, PathArguments, ReturnType,
    Type,
};

/// The host takes no longer names: they are parts of keys, paths and URLs.
const NAME_LEN_MAX: usize = 64;

/// The parts of a function that its block is made of.
pub(crate) struct Signature<'a> {
    /// The function's name, with hyphens.
    pub(crate) block_name: String,
    /// The first paragraph of the doc comment, on one line.
    pub(crate) summary: String,
    pub(crate) input: &'a Type,
    pub(crate) output: &'a Type,
    /// The whole return type.
    pub(crate) returns: &'a Type,
}

impl<'a> Signature<'a> {
    /// Reads a function; the error is the first thing that a block cannot have.
    pub(crate) fn of(function: &'a ItemFn) -> syn::Result<Self> {
        let sig = &function.sig;
        if let Some(keyword) = &sig.constness {
            return refuse(keyword, "a block is an ordinary function: remove `const`");
        }
        if let Some(keyword) = &sig.asyncness {
            return refuse(keyword, "a block is not async: an effect returns when its answer is there");
        }
        if let Some(keyword) = &sig.unsafety {
            return refuse(keyword, "a block is an ordinary function: remove `unsafe`");
        }
        if let Some(abi) = &sig.abi {
            return refuse(abi, "a block is an ordinary function: remove `extern`");
        }
        if !sig.generics.params.is_empty() {
            return refuse(
                &sig.generics,
                "a block has one input type and one output type: it is not generic",
            );
        }
        let returns = match &sig.output {
            ReturnType::Type(_, returns) => returns.as_ref(),
            ReturnType::Default => {
                return refuse(&sig.ident, "a block returns `Result<Output, Failure>`");
            }
        };
        Ok(Self {
            block_name: block_name(&sig.ident)?,
            summary: summary(&function.attrs),
            input: input(function)?,
            output: output(returns)?,
            returns,
        })
    }
}

fn refuse<T>(tokens: impl quote::ToTokens, message: &str) -> syn::Result<T> {
    Err(syn::Error::new_spanned(tokens, message))
}

fn block_name(ident: &Ident) -> syn::Result<String> {
    let name = ident.unraw().to_string();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !begins || !name.chars().all(plain) || name.len() > NAME_LEN_MAX {
        return refuse(
            ident,
            "a block is named by its function: a letter, then `a` to `z`, `0` to `9` and `_`, 64 at most",
        );
    }
    Ok(name.replace('_', "-"))
}

fn input(function: &ItemFn) -> syn::Result<&Type> {
    const ONE_INPUT: &str = "a block takes one input: `fn name(input: Input) -> …`";
    let inputs = &function.sig.inputs;
    if let Some(variadic) = &function.sig.variadic {
        return refuse(variadic, ONE_INPUT);
    }
    let typed = match inputs.first() {
        None => return refuse(&function.sig.ident, ONE_INPUT),
        Some(FnArg::Receiver(receiver)) => {
            return refuse(receiver, "a block is a free function: it takes its input, not `self`");
        }
        Some(FnArg::Typed(typed)) => typed,
    };
    if let Some(second) = inputs.iter().nth(1) {
        return refuse(second, "a block takes one input: put more values into its type");
    }
    match typed.ty.as_ref() {
        Type::Reference(_) => refuse(&typed.ty, "a block owns its input: take it by value"),
        Type::ImplTrait(_) => refuse(&typed.ty, "a block's input is read from JSON: name its type"),
        input => Ok(input),
    }
}

fn output(returns: &Type) -> syn::Result<&Type> {
    let result = match returns {
        Type::Path(path) => path.path.segments.last().filter(|segment| segment.ident == "Result"),
        _ => None,
    };
    let arguments = match result.map(|segment| &segment.arguments) {
        Some(PathArguments::AngleBracketed(arguments)) => Some(&arguments.args),
        _ => None,
    };
    match arguments.and_then(|arguments| arguments.first()) {
        Some(GenericArgument::Type(Type::ImplTrait(output))) => {
            refuse(output, "a block's output has a schema: name its type")
        }
        Some(GenericArgument::Type(output)) => Ok(output),
        _ => refuse(returns, "a block returns `Result<Output, Failure>`"),
    }
}

fn summary(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    });
    // A `/** … */` comment arrives as one attribute of many lines.
    let text = lines.collect::<Vec<_>>().join("\n");
    let lines = text.lines().map(str::trim);
    let paragraph = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    paragraph.collect::<Vec<_>>().join(" ")
}
