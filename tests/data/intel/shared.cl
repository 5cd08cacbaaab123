#pragma OPENCL EXTENSION cl_intel_subgroups : enable

// Loads of local memory whose results are used behind the barrier that lets others overwrite what was read.
kernel void turns(global int *o, global int *i, local int *s) {
    int l = get_local_id(0), x = i[get_global_id(0)], sum = 0;
    for (int k = 0; k < 4; ++k) {
        s[l] = x + k;
        barrier(CLK_LOCAL_MEM_FENCE);
        int p = s[l ^ 1], q = s[l ^ 17], r = s[63 - l];
        barrier(CLK_LOCAL_MEM_FENCE);
        sum += p + q * 3 + r * 5;
    }
    o[get_global_id(0)] = sum;
}

// The same bytes are read and then overwritten by one thread, in a loop and in a branch.
kernel void overtake(global int *o, global int *i, local int *s) {
    int l = get_local_id(0), x = i[get_global_id(0)];
    s[l] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < 3; ++k) {
        int p = s[l];
        s[l] = p + k;
        if (x & 1) s[l] += 7;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    o[get_global_id(0)] = s[l ^ 32];
}

// Results of atomic operations on local memory, overwritten behind a barrier.
kernel void counters(global int *o, global int *i, local int *s) {
    int l = get_local_id(0), x = i[get_global_id(0)];
    if (l < 8) s[l] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&s[x & 7], x);
    barrier(CLK_LOCAL_MEM_FENCE);
    int sum = s[l & 7];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l < 8) s[l] = sum * 2;
    barrier(CLK_LOCAL_MEM_FENCE);
    o[get_global_id(0)] = sum + s[(l + 1) & 7];
}

// Subgroups part, in branches that nest, and in loops of different lengths.
kernel void apart(global int *o, global int *i, int n) {
    int g = get_global_id(0), x = i[g];
    int t = sub_group_broadcast(x, 0) & 15;
    if (t > 7) {
        x += i[g ^ 1];
        if (t > 11) x *= 3; else x -= i[g ^ 2];
    } else {
        for (int k = 0; k < t; ++k) x = x * 5 + i[(g + k) & 63];
    }
    if (n == 7) x ^= 0x55;
    for (int k = 0; k < n; ++k) x += k * t;
    o[g] = x;
}
