//! What a host does that has an execution.

use super::house::Action;
use super::house::House;
use super::mutant::Mutant;
use super::state::{End, Execution, Host, Id, Phase, Said, Wire, World, Write};

impl World {
    /// Carries out an action of a host.
    pub(crate) fn host_acts(&mut self, house: &House, action: Action) {
        match action {
            Action::Crash(nth) => {
                self.crashes_left -= 1;
                self.hosts[nth] = Host::default();
                self.drop_answers();
            }
            Action::ReceiveLate(nth) => {
                if let Some(late) = self.hosts[nth].late.take()
                    && let Some(said) = self.take_answer(late)
                {
                    self.record_alone(house, &[Write::Answer { id: late, said }]);
                }
            }
            Action::Finish(nth) | Action::FinishUnseen(nth) => {
                let Some(execution) = self.hosts[nth].execution.take() else { return };
                execution.finish(house, self);
                if action == Action::FinishUnseen(nth) {
                    self.record_alone(house, &execution.unwritten);
                }
            }
            other => self.execution_acts(house, other),
        }
    }

    fn execution_acts(&mut self, house: &House, action: Action) {
        let (Action::Dispatch(nth)
        | Action::DispatchUnseen(nth)
        | Action::GiveUp(nth)
        | Action::FirstByte(nth)
        | Action::CannotConnect(nth)
        | Action::Read(nth, _)
        | Action::Receive(nth)
        | Action::Lose(nth)
        | Action::Trap(nth)
        | Action::Flush(nth)) = action
        else {
            return;
        };
        let Some(mut execution) = self.hosts[nth].execution.take() else { return };
        match action {
            Action::Dispatch(_) => execution.dispatch(house, self, false),
            Action::DispatchUnseen(_) => execution.dispatch(house, self, true),
            Action::GiveUp(_) => execution.phase = Phase::Ended(End::Database),
            Action::Read(_, said) => execution.read(house, self, said),
            Action::Flush(_) => self.flush(house, &mut execution),
            Action::Trap(_) => {
                if let Phase::Await { id } = execution.phase {
                    self.hosts[nth].late = Some(id);
                    execution.phase = Phase::Ended(End::Trapped);
                }
            }
            call => self.call_goes_on(house, &mut execution, call),
        }
        self.hosts[nth].execution = Some(execution);
        self.drop_answers();
    }

    fn flush(&mut self, house: &House, execution: &mut Execution) {
        let writes = std::mem::take(&mut execution.unwritten);
        if house.lacks(Mutant::Receipt) {
            return;
        }
        // What the guest has been told is not what is stored: it is run again from its journal.
        self.record_alone(house, &writes);
        if !self.holds(&writes) && !house.lacks(Mutant::FlushLooks) {
            execution.phase = Phase::Ended(End::Rerun);
        }
    }

    fn call_goes_on(&mut self, house: &House, execution: &mut Execution, action: Action) {
        match (action, execution.phase) {
            (Action::FirstByte(_), Phase::Send { id, key, .. }) => {
                self.wires.push(Wire { id, key, answer: None });
                execution.phase = Phase::Await { id };
            }
            (Action::CannotConnect(_), Phase::Send { id, .. }) => {
                execution.learn(house, self, id, Said::NotSent);
            }
            (Action::Receive(_), Phase::Await { id }) => {
                if let Some(said) = self.take_answer(id) {
                    execution.learn(house, self, id, said);
                }
            }
            (Action::Lose(_), Phase::Await { id }) => execution.learn(house, self, id, Said::NoAnswer),
            _ => {}
        }
    }

    fn take_answer(&mut self, id: Id) -> Option<Said> {
        let at = self.wires.iter().position(|wire| wire.id == id && wire.answer.is_some())?;
        self.wires.remove(at).answer
    }

    /// Answers that nobody waits for are gone.
    fn drop_answers(&mut self) {
        let hosts = &self.hosts;
        self.wires.retain(|wire| {
            wire.answer.is_none()
                || hosts.iter().any(|host| {
                    let phase = host.execution.as_ref().map(|execution| execution.phase);
                    phase == Some(Phase::Await { id: wire.id }) || host.late == Some(wire.id)
                })
        });
    }
}
