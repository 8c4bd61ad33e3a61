//! What waits for the writer thread.

use std::collections::VecDeque;
use std::time::Duration;

use crate::job::Job;

/// Callers that may wait at once; beyond that they are told that the store is busy.
pub(crate) const QUEUE_MAX: usize = 65_536;
/// Operations in one transaction.
const BATCH_OPERATIONS_MAX: usize = 256;
/// The longest pause between two steps of a long piece of work.
const STEP_PAUSE_MAX: Duration = Duration::from_millis(100);

/// A job, and when its caller will have given up, by the monotonic clock.
pub(crate) struct Waiting {
    pub(crate) job: Job,
    pub(crate) expires: Duration,
}

/// The next work of the thread.
pub(crate) enum Todo {
    /// Holds the lock for a checkpoint.
    Hold,
    /// One step of a long piece of work.
    Step(Waiting),
    /// The jobs that wait.
    Jobs,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Waiting>,
    /// Steps of long pieces of work: sweeping, purging, spreading a flag. They give way to jobs,
    /// and pause between two of them, so that others get on beside them, in this process and in
    /// others.
    pub(crate) steps: VecDeque<Waiting>,
    /// The next step does not begin before this moment, by the monotonic clock.
    step_due: Duration,
    /// The last thing done was a step.
    was_step: bool,
    /// A checkpoint wants a writer to hold the lock.
    pub(crate) is_hold_wanted: bool,
    /// The thread waits to be woken. The caller that wakes it clears this flag, so that no second
    /// caller wakes it.
    pub(crate) sleeping: bool,
    /// The last handle is gone: finish the jobs that wait, then end.
    pub(crate) closing: bool,
    /// The thread has ended before the store was closed: a bug.
    pub(crate) broken: bool,
}

impl Queue {
    /// The work to do now, if any.
    pub(crate) fn next(&mut self, now: impl FnOnce() -> Duration) -> Option<Todo> {
        if std::mem::take(&mut self.is_hold_wanted) {
            return Some(Todo::Hold);
        }
        let is_turn_of_steps = !self.steps.is_empty() && (!self.was_step || self.jobs.is_empty());
        if is_turn_of_steps
            && self.step_due <= now()
            && let Some(step) = self.steps.pop_front()
        {
            self.was_step = true;
            return Some(Todo::Step(step));
        }
        self.was_step = false;
        if self.jobs.is_empty() { None } else { Some(Todo::Jobs) }
    }

    /// How long to sleep when there is nothing to do now; `None` until woken.
    pub(crate) fn pause(&self, now: impl FnOnce() -> Duration) -> Option<Duration> {
        if self.steps.is_empty() { None } else { Some(self.step_due.saturating_sub(now())) }
    }

    /// A step has held the lock for `held`: for twice as long the next one leaves it to others.
    pub(crate) fn rest_after_step(&mut self, now: Duration, held: Duration) {
        self.step_due = now.saturating_add(held.saturating_mul(2).min(STEP_PAUSE_MAX));
    }

    /// Takes the jobs that wait, up to the first task, within the bounds of a batch. A later job is
    /// in the next batch: while one half of the callers is served, the other half comes back, and
    /// no thread sleeps.
    pub(crate) fn take_batch(&mut self, batch: &mut VecDeque<Waiting>) {
        let is_operation = |waiting: &&Waiting| !matches!(waiting.job, Job::Task(_));
        let operations =
            self.jobs.iter().take(BATCH_OPERATIONS_MAX).take_while(is_operation).count();
        if operations == self.jobs.len() {
            std::mem::swap(&mut self.jobs, batch);
        } else {
            batch.extend(self.jobs.drain(..operations));
        }
    }

    /// The time at which the first caller that waits gives up.
    pub(crate) fn first_expiry(&self) -> Option<Duration> {
        self.jobs.iter().map(|waiting| waiting.expires).min()
    }

    /// Takes out the jobs whose callers have given up by `moment`.
    pub(crate) fn take_expired(&mut self, moment: Duration) -> Vec<Waiting> {
        let (expired, left) = self.jobs.drain(..).partition(|waiting| waiting.expires <= moment);
        self.jobs = left;
        VecDeque::into(expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Work;

    fn waiting() -> Waiting {
        Waiting { job: Work::job("test", |_| Ok(())).0, expires: Duration::MAX }
    }

    fn name(todo: Option<Todo>) -> &'static str {
        match todo {
            Some(Todo::Hold) => "hold",
            Some(Todo::Step(_)) => "step",
            Some(Todo::Jobs) => "jobs",
            None => "nothing",
        }
    }

    /// Steps and jobs take turns, and between two steps there is twice as much time as the first
    /// has held the lock.
    #[test]
    fn steps_give_way_to_jobs_and_rest() {
        let mut queue = Queue::default();
        queue.steps.extend([waiting(), waiting(), waiting()]);
        queue.jobs.push_back(waiting());
        let ms = Duration::from_millis;
        assert_eq!(name(queue.next(|| ms(0))), "step");
        assert_eq!(
            name(queue.next(|| ms(0))),
            "jobs",
            "a step that takes no time does not keep the others from their turn"
        );
        queue.rest_after_step(ms(10), ms(10));
        assert_eq!(name(queue.next(|| ms(29))), "jobs");
        assert_eq!(queue.pause(|| ms(29)), Some(ms(1)));
        assert_eq!(name(queue.next(|| ms(30))), "step");
        queue.jobs.clear();
        queue.rest_after_step(ms(5_000), ms(4_000));
        assert_eq!(
            queue.pause(|| ms(5_000)),
            Some(STEP_PAUSE_MAX),
            "a slow disk does not stop it for good"
        );
        queue.is_hold_wanted = true;
        assert_eq!(name(queue.next(|| ms(5_000))), "hold");
        assert_eq!(name(queue.next(|| ms(5_000))), "nothing");
        assert_eq!(name(queue.next(|| ms(5_100))), "step");
    }
}
