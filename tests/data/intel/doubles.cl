kernel void doubles(global double *out, const global double *in) {
    int i = get_global_id(0); double x = in[i], y = in[i+1];
    out[4*i] = x * y + 1.0; out[4*i+1] = fma(x, y, -x); out[4*i+2] = x < y ? floor(x) : -y; out[4*i+3] = (double)(int)x + (double)(float)y;
}
