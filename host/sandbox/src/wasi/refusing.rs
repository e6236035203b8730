//! Interfaces that language runtimes import whether or not a program uses them: files, sockets, terminals. Every function
//! is there so that the program can be linked; none of them does anything.

use wasmtime::component::{LinkerInstance, Resource, ResourceType, Val};
use wasmtime::{AsContextMut as _, StoreContextMut};

use crate::host::{Abort, HostState};

/// An interface without anything behind it.
pub(crate) struct Refusing {
    /// The types of handles that its functions would give or take, as one text.
    pub(crate) resources: &'static str,
    /// The functions that can be called without having such a handle, and what they say.
    pub(crate) answers: &'static [(&'static str, Says)],
}

/// What a function says that a guest can call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Says {
    /// There are none.
    EmptyList,
    /// There is none.
    Nothing,
    /// Access is denied.
    Denied,
    /// A handle of what can only be handed to functions that deny.
    Handle,
}

/// Stands for every type of handle here. No guest has one, but of a network, which is the same for all.
struct Handle;

/// Defines the interface with these functions.
pub(crate) fn link(
    instance: &mut LinkerInstance<'_, HostState>,
    functions: &'static str,
    refusing: &'static Refusing,
) -> wasmtime::Result<()> {
    for resource in refusing.resources.split_whitespace() {
        instance.resource(resource, ResourceType::host::<Handle>(), |_, _| Ok(()))?;
    }
    for function in functions.split_whitespace() {
        let says = refusing.answers.iter().find(|(name, _)| *name == function).map(|(_, says)| *says);
        let name = if function.contains('.') { format!("[method]{function}") } else { function.to_owned() };
        instance.func_new(&name, move |mut store, _, arguments, results| {
            let says = says.ok_or(Abort::Absent(function))?;
            for argument in arguments {
                // Handed back: a guest's call ends only when nothing that it lent is held any more.
                if let Val::Resource(lent) = argument {
                    lent.try_into_resource::<Handle>(&mut store)?;
                }
            }
            results.iter_mut().try_for_each(|result| {
                *result = value(says, &mut store)?;
                Ok(())
            })
        })?;
    }
    Ok(())
}

fn value(says: Says, store: &mut StoreContextMut<'_, HostState>) -> wasmtime::Result<Val> {
    Ok(match says {
        Says::EmptyList => Val::List(Vec::new()),
        Says::Nothing => Val::Option(None),
        Says::Denied => Val::Result(Err(Some(Box::new(Val::Enum("access-denied".into()))))),
        Says::Handle => {
            Val::Resource(Resource::<Handle>::new_own(0).try_into_resource_any(store.as_context_mut())?)
        }
    })
}
