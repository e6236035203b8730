//! Puts together what the function becomes.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, Item, ItemFn, Path};

use crate::arguments::{Arguments, Grant};
use crate::signature::Signature;

/// The function and its block, or one error at the place that causes it.
pub(crate) fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = match function(item) {
        Ok(function) => function,
        Err(error) => return error.into_compile_error(),
    };
    let signature = match Signature::of(&function) {
        Ok(signature) => signature,
        Err(error) => return error.into_compile_error(),
    };
    match syn::parse2::<Arguments>(arguments) {
        Ok(arguments) => block(&function, &signature, &arguments),
        Err(error) => {
            // The function itself is sound: keep it, so that its callers see no error of their own.
            let error = error.into_compile_error();
            quote! { #function #error }
        }
    }
}

fn function(item: TokenStream) -> syn::Result<ItemFn> {
    match syn::parse2(item)? {
        Item::Fn(function) => Ok(function),
        other => Err(syn::Error::new(
            other.span(),
            "a block is a function: `fn name(input: Input) -> Result<Output, Failure>`",
        )),
    }
}

fn block(function: &ItemFn, signature: &Signature, arguments: &Arguments) -> TokenStream {
    let name = &function.sig.ident;
    let Signature { block_name, summary, input, output, returns } = signature;
    let grants = arguments.effects.iter().map(grant);
    let credits = arguments.credits;
    let verify = arguments.verify.as_ref().map(|verify| verification(name, verify));
    let verifying = arguments.verify.as_ref().map(|_| quote! { verifying });
    let call = quote_spanned! { returns.span() => outcome(#name(input)) };
    quote! {
        // A block owns its input.
        #[allow(clippy::needless_pass_by_value)]
        #function

        // The block is a type of the function's name: types and functions do not share names.
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        enum #name {}

        #[doc(hidden)]
        #[allow(dead_code)]
        enum ACrateHasOneBlock {}

        const _: () = {
            use ::counterfoil_sdk::__private::{
                Block, Declaration, Grant, export_block, outcome,
            };

            impl Block for #name {
                type Input = #input;
                type Output = #output;
                const DECLARATION: Declaration = Declaration {
                    name: #block_name,
                    summary: #summary,
                    effects: &[#(#grants),*],
                    credits: #credits,
                };

                fn run(
                    input: Self::Input,
                ) -> ::core::result::Result<Self::Output, ::counterfoil_sdk::Failure> {
                    #call
                }
            }

            #verify
            export_block!(#name #verifying);
        };
    }
}

fn verification(name: &Ident, verify: &Path) -> TokenStream {
    let said = quote_spanned! { verify.span() => verdict(#verify(effect)) };
    quote! {
        impl ::counterfoil_sdk::__private::Verify for #name {
            fn verify(effect: &::counterfoil_sdk::UnknownEffect) -> ::counterfoil_sdk::Verdict {
                use ::counterfoil_sdk::__private::verdict;
                #said
            }
        }
    }
}

fn grant(Grant { kind, safety, connections, hosts }: &Grant) -> TokenStream {
    quote! {
        Grant {
            kind: #kind,
            safety: #safety,
            connections: &[#(#connections),*],
            hosts: &[#(#hosts),*],
        }
    }
}
