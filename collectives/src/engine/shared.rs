//! One engine for all threads of a process: one of them drives, the others give it work or wait.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use verbcast_transport::endpoint::{BufferId, Endpoint, Idle};
use verbcast_transport::link::Bell;

use super::{Engine, OperationId, Outcome};

/// An engine and what its threads need to take turns.
///
/// The thread that *drives* holds the lock also while it sleeps; who wants to get in says so in
/// `entering` and rings the bell, and the driver gives way. Threads that wait for an operation
/// while another one drives sleep on `changed`.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    entering: AtomicU32,
    changed: Condvar,
    bell: Arc<dyn Bell>,
    /// The progress thread, if there is one, is to end.
    stops: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(endpoint: Endpoint, bell: Arc<dyn Bell>) -> Self {
        Self {
            engine: Mutex::new(Engine::new(endpoint)),
            entering: AtomicU32::new(0),
            changed: Condvar::new(),
            bell,
            stops: AtomicBool::new(false),
        }
    }

    /// The engine, as soon as the thread that drives it gives way.
    pub(crate) fn enter(&self) -> MutexGuard<'_, Engine> {
        if let Ok(engine) = self.engine.try_lock() {
            return engine;
        }
        self.entering.fetch_add(1, Ordering::SeqCst);
        // It looks at `entering` after it has armed its bell and before it sleeps.
        self.bell.ring();
        // A panic inside has closed its buffers on unwinding.
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.entering.fetch_sub(1, Ordering::SeqCst);
        engine
    }

    /// Drives the engine, or lets another thread do it, until `is_over`.
    pub(crate) fn wait<'a>(
        &'a self,
        mut engine: MutexGuard<'a, Engine>,
        mut is_over: impl FnMut(&Engine) -> bool,
    ) -> MutexGuard<'a, Engine> {
        loop {
            if is_over(&engine) {
                if !engine.is_driven && !engine.is_at_rest() {
                    self.tell(&mut engine);
                }
                return engine;
            }
            if !engine.is_driven {
                return Driver::new(self, engine).drive(is_over);
            }
            engine = self.park(engine);
        }
    }

    /// Ends an operation if it has not, and forgets it.
    pub(crate) fn take(&self, mut engine: MutexGuard<'_, Engine>, id: OperationId) -> Outcome {
        engine.give_up(id);
        self.tell(&mut engine);
        self.wait(engine, |engine| engine.is_over(id)).take(id)
    }

    /// Ends whatever uses this buffer, which is about to be somebody else's.
    pub(crate) fn end_lending(&self, buffer: BufferId) {
        let engine = self.enter();
        let user = engine.user_of(buffer);
        if let Some(id) = user {
            let _dropped = self.take(engine, id);
        } else {
            drop(engine);
        }
        // If no operation came of it.
        let _closed = self.enter().endpoint.close(buffer);
    }

    /// Sleeps until something has changed.
    fn park<'a>(&'a self, mut engine: MutexGuard<'a, Engine>) -> MutexGuard<'a, Engine> {
        engine.parked += 1;
        let told = engine.told;
        let is_same = |engine: &mut Engine| engine.told == told;
        let engine = self.changed.wait_while(engine, is_same);
        self.entering.fetch_sub(1, Ordering::SeqCst);
        engine.unwrap_or_else(PoisonError::into_inner)
    }

    /// One turn, unless another thread drives anyway.
    pub(crate) fn turn(&self, engine: &mut Engine) {
        if !engine.is_driven {
            engine.turn();
            let _until = engine.look_at_clocks();
            self.tell(engine);
        }
    }

    /// Wakes those who wait for what has changed; whoever drives gives way to all of them.
    pub(crate) fn tell(&self, engine: &mut Engine) {
        if engine.parked > 0 {
            self.entering.fetch_add(engine.parked, Ordering::SeqCst);
            engine.parked = 0;
            engine.told += 1;
            self.changed.notify_all();
        }
    }

    /// Starts a thread that drives whenever operations run and no other thread does.
    pub(crate) fn start_progress(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        let builder = std::thread::Builder::new().name("verbcast-progress".to_owned());
        builder.spawn(move || shared.progress())
    }

    fn progress(&self) {
        let mut engine = self.enter();
        while !self.stops.load(Ordering::SeqCst) {
            let has_work = !engine.is_at_rest() && !engine.is_driven;
            engine = if has_work {
                // Who waits is quicker if it drives itself.
                let is_over = |engine: &Engine| {
                    engine.is_at_rest() || engine.parked > 0 || self.stops.load(Ordering::SeqCst)
                };
                Driver::new(self, engine).drive(is_over)
            } else {
                self.park(engine)
            };
        }
    }

    /// Lets the progress thread end.
    pub(crate) fn stop_progress(&self) {
        self.stops.store(true, Ordering::SeqCst);
        let mut engine = self.enter();
        self.tell(&mut engine);
    }
}

/// The thread that drives.
struct Driver<'a> {
    shared: &'a Shared,
    /// Only while it gives way it is not there.
    engine: Option<MutexGuard<'a, Engine>>,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Shared, mut engine: MutexGuard<'a, Engine>) -> Self {
        engine.is_driven = true;
        Self { shared, engine: Some(engine) }
    }

    fn drive(mut self, mut is_over: impl FnMut(&Engine) -> bool) -> MutexGuard<'a, Engine> {
        let mut idle = Idle::new();
        let mut ended = self.engine.as_ref().map(|engine| engine.ends);
        while let Some(engine) = &mut self.engine {
            let moved = engine.turn();
            if ended.replace(engine.ends) != Some(engine.ends) {
                self.shared.tell(engine);
            }
            if is_over(engine) {
                break;
            }
            if moved {
                engine.endpoint.busy(&mut idle);
            }
            if self.shared.entering.load(Ordering::SeqCst) > 0 {
                engine.endpoint.busy(&mut idle);
                self.give_way();
            } else if !moved {
                engine.sleep(&mut idle);
            }
        }
        let shared = self.shared;
        let mut engine = match self.engine.take() {
            Some(engine) => engine,
            None => shared.engine.lock().unwrap_or_else(PoisonError::into_inner),
        };
        engine.endpoint.busy(&mut idle);
        engine.is_driven = false;
        shared.tell(&mut engine);
        engine
    }

    /// Lets everybody in who wants to, and comes back.
    fn give_way(&mut self) {
        self.engine = None;
        while self.shared.entering.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let engine = self.shared.engine.lock();
        self.engine = Some(engine.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Driver<'_> {
    /// After a panic: another thread may drive.
    fn drop(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.is_driven = false;
            self.shared.tell(engine);
        }
    }
}
