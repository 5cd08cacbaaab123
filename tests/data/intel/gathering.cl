// Workgroups meet: each leaves its values, and the last one that its first work item counts adds up all of them.
kernel void gathering(global int *values, global int *sums, global atomic_int *count, const global int *given)
{
    local int taken;
    values[get_global_id(0)] = given[get_global_id(0)];
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0)
        taken = atomic_fetch_add_explicit(count, 1, memory_order_acq_rel, memory_scope_device);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (taken == (int)get_num_groups(0) - 1)
        for (int at = get_local_id(0); at < get_global_size(0); at += get_local_size(0))
            sums[at % get_local_size(0)] += values[at];
}
