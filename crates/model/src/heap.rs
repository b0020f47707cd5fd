//! What a job spec has on the heap, so that none of it is free of charge.
//!
//! Each struct is taken apart by a pattern that names all of its fields. A new field does not compile
//! before it is listed, nor one of a type that nobody has measured; and what is said to have nothing on
//! the heap is asked whether it has anything to free.

use std::collections::BTreeMap;

use crate::{
    Access, ArraySpec, Bytes, Checkpoint, Command, DeclaredPlan, DefaultTimeOf, Dependency,
    Elastic, GpuRequest, IndexRanges, JobSpec, JobUpdate, JobWatch, Launcher, OwnTerms, Preempt,
    Priority, Replicas, Retry, RetryRule, RolloutRule, RoutePolicy, ScheduledMin, ServiceSpec,
    Shared, Span, Stall, TimeOfDay, Topology, Weekday,
};

pub(crate) trait Heap {
    /// About so many bytes, beside those of the value itself.
    fn heap(&self) -> usize;
}

macro_rules! heap_of_fields {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Heap for $type {
            fn heap(&self) -> usize {
                let $type { $($field),* } = self;
                [$($field.heap()),*].into_iter().sum()
            }
        }
    };
}

macro_rules! nothing_on_the_heap {
    ($($type:ty),* $(,)?) => {$(
        const _: () = assert!(!std::mem::needs_drop::<$type>());
        impl Heap for $type {
            fn heap(&self) -> usize {
                0
            }
        }
    )*};
}

nothing_on_the_heap!(bool, u8, u16, u32, u64, i32, f64, Span, Bytes, TimeOfDay, Weekday);
nothing_on_the_heap!(Priority, Elastic, Topology, Launcher, Dependency, Preempt, Retry, Stall);
nothing_on_the_heap!(OwnTerms, Replicas, RoutePolicy, Access, RetryRule, RolloutRule);

impl Heap for String {
    fn heap(&self) -> usize {
        self.len()
    }
}

impl<T: Heap> Heap for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, T::heap)
    }
}

impl<T: Heap> Heap for Box<T> {
    fn heap(&self) -> usize {
        size_of::<T>() + T::heap(self)
    }
}

/// Of one that others have, too, this is what it takes once.
impl<T: Heap> Heap for Shared<T> {
    fn heap(&self) -> usize {
        T::heap(self)
    }
}

impl<T: Heap> Heap for Vec<T> {
    fn heap(&self) -> usize {
        size_of::<T>() * self.len() + self.iter().map(T::heap).sum::<usize>()
    }
}

impl<K: Heap, V: Heap> Heap for BTreeMap<K, V> {
    fn heap(&self) -> usize {
        let entry = |(key, value): (&K, &V)| size_of::<(K, V)>() + key.heap() + value.heap();
        self.iter().map(entry).sum()
    }
}

impl Heap for IndexRanges {
    fn heap(&self) -> usize {
        self.bytes()
    }
}

/// Once in the spec, and once as those that wait.
impl Heap for ArraySpec {
    fn heap(&self) -> usize {
        let ArraySpec { indices, max_running } = self;
        2 * indices.heap() + max_running.heap()
    }
}

impl Heap for Command {
    fn heap(&self) -> usize {
        match self {
            Command::Shell(line) => line.heap(),
            Command::Argv(words) => words.heap(),
        }
    }
}

impl Heap for DefaultTimeOf {
    fn heap(&self) -> usize {
        match self {
            DefaultTimeOf::Team { team: name } | DefaultTimeOf::Class { class: name } => {
                name.heap()
            }
            DefaultTimeOf::Policy => 0,
        }
    }
}

heap_of_fields!(JobSpec {
    name,
    run,
    nodes,
    gpus,
    gpus_per_node,
    gpu_share,
    cpus_per_gpu,
    mem_per_gpu,
    cpus_per_node,
    mem_per_node,
    ranks_per_node,
    time,
    default_time_of,
    team,
    priority,
    elastic,
    class,
    gpu_mem,
    labels,
    avoid_labels,
    exclusive,
    topology,
    launcher,
    after,
    env,
    workdir,
    image,
    array,
    hold,
    grace,
    checkpoint,
    preempt,
    retry,
    stall,
    watch,
    plan,
    service,
    stdin,
});

heap_of_fields!(ServiceSpec {
    port,
    health,
    models,
    replicas,
    target_in_flight,
    max_in_flight,
    policy,
    sticky_header,
    warm_up,
    hung_after,
    slow_start,
    drain,
    queue,
    queue_wait,
    up_after,
    down_after,
    zero_after,
    schedule,
    access,
    retry,
    files,
    rollout,
});

heap_of_fields!(DeclaredPlan {
    model,
    task,
    lora_rank,
    precision,
    seq,
    global_batch,
    tp,
    pp,
    vp,
    cp,
    ep,
    dp,
    micro_batch,
    zero,
    recompute,
    sequence_parallel,
    step_time_s,
    memory_gb,
});

heap_of_fields!(JobUpdate {
    name,
    priority,
    time,
    no_time,
    hold,
    team,
    class,
    after,
    nodes,
    gpus,
    gpus_per_node,
});

heap_of_fields!(ScheduledMin { from, until, days, min, utc_offset_minutes });
heap_of_fields!(JobWatch { idle, straggler, hang, memory, crash_loop });
heap_of_fields!(Checkpoint { dir, signal, grace });
heap_of_fields!(GpuRequest { model, count });

#[cfg(test)]
mod tests;
