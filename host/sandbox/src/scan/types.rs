//! Counts the types of a component without recursion.
//!
//! Types nest inside types, and a reader that follows them calls itself: a few hundred kilobytes of nesting would take
//! the whole stack, and with it the process. So depth is checked here before anybody reads them whole.

use counterfoil_domain::code::Code;
use counterfoil_domain::ports::Refused;
use wasmparser::{BinaryReader, ComponentType, ComponentTypeDeclaration};

use super::unreadable;
use crate::refusal::refused;

/// Types inside types. The validator takes as many.
pub(crate) const TYPE_NESTING_MAX: usize = 100;

const COMPONENT_TYPE: u8 = 0x41;
const INSTANCE_TYPE: u8 = 0x42;
const TYPE_DECLARATION: u8 = 0x01;

/// Counts the types and declarations of a component type section, given its bytes and where they begin.
pub(super) fn count(section: &[u8], offset: usize) -> Result<u64, Refused> {
    let mut reader = BinaryReader::new(section, offset);
    let mut types = 0;
    // How many entries are still to come in the section, and in each type that is open inside it.
    let mut open = vec![read_count(&mut reader)?];
    while let Some(left) = open.last_mut() {
        let Some(after) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = after;
        types += 1;
        let is_declaration = open.len() > 1;
        if let Some(entries) = opened(&mut reader, is_declaration)? {
            if open.len() == TYPE_NESTING_MAX {
                return Err(refused(
                    Code::ComponentTooLarge,
                    format!(
                        "the component's types are nested more than {TYPE_NESTING_MAX} deep. Build the block flat."
                    ),
                ));
            }
            open.push(entries);
        }
    }
    Ok(types)
}

/// Reads one entry; of a type that has entries of its own, only the head, and returns their count.
fn opened(reader: &mut BinaryReader<'_>, is_declaration: bool) -> Result<Option<u32>, Refused> {
    let mut head = reader.clone();
    let mut byte = || head.read_u8().map_err(|error| unreadable(&error));
    let is_type = !is_declaration || byte()? == TYPE_DECLARATION;
    if is_type && matches!(byte()?, COMPONENT_TYPE | INSTANCE_TYPE) {
        *reader = head;
        return read_count(reader).map(Some);
    }
    if is_declaration {
        reader.read::<ComponentTypeDeclaration<'_>>().map_err(|error| unreadable(&error))?;
    } else {
        reader.read::<ComponentType<'_>>().map_err(|error| unreadable(&error))?;
    }
    Ok(None)
}

fn read_count(reader: &mut BinaryReader<'_>) -> Result<u32, Refused> {
    reader.read_var_u32().map_err(|error| unreadable(&error))
}
