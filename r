# convgen registry: target | problem | config | time by the model | of which convgen and chip
gfx950 | --dt=f16 64x64:64x64 | tile=32x32x32 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v | 3.000 us | convgen 0.1.0, mi300x
