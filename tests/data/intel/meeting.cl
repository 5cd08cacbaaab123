// Work items meet their namesakes of other workgroups: each leaves a value, and the last one to count itself adds up all.
kernel void meeting(global int *values, global int *sums, global atomic_int *counts, const global int *given)
{
    int me = get_local_id(0), items = get_local_size(0), groups = get_num_groups(0);
    values[get_global_id(0)] = given[get_global_id(0)];
    int taken = atomic_fetch_add_explicit(&counts[me], 1, memory_order_acq_rel, memory_scope_device);
    if (taken == groups - 1)
        for (int group = 0; group < groups; group++)
            sums[me] += values[group * items + me];
}
