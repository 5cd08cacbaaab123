"""Convolutions of real models on which no number of the chooser was fitted: forty lines of `convgen conv`.

The list was drawn from the models' published definitions before any of its lines was measured. `silicon.py` times it
beside cuDNN as the part `models`.
"""

from __future__ import annotations

_LAST = "--stag=axb --wtag=axb --dtag=axb"  #: channels last

#: (direction, layer, model)
_LAYERS: tuple[tuple[str, str, str], ...] = (
    ("FWD_D", "mb32ic192ih35oc64oh35kh1", "Inception v3"),
    ("FWD_D", "mb32ic48ih35oc64oh35kh5ph2", "Inception v3"),
    ("FWD_D", "mb32ic64ih35oc96oh35kh3ph1", "Inception v3"),
    ("FWD_D", "mb32ic160ih17iw17oc160oh17ow17kh1kw7ph0pw3", "Inception v3"),
    ("BWD_D", "mb32ic192ih17iw17oc192oh17ow17kh7kw1ph3pw0", "Inception v3"),
    ("BWD_W", "mb32ic384ih8iw8oc384oh8ow8kh1kw3ph0pw1", "Inception v3"),
    ("FWD_D", "mb64ic32ih112oc16oh112kh1", "MobileNet v2"),
    ("FWD_D", "mb64ic24ih56oc144oh56kh1", "MobileNet v2"),
    ("FWD_D", "mb64g144ic144ih56oc144oh56kh3ph1", "MobileNet v2"),
    ("BWD_D", "mb64g384ic384ih14oc384oh14kh3ph1", "MobileNet v2"),
    ("BWD_W", "mb64ic96ih14oc576oh14kh1", "MobileNet v2"),
    ("FWD_D", "mb64ic3ih224oc32oh112kh3sh2ph1", "MobileNet v2"),
    ("FWD_D", "mb32g240ic240ih28oc240oh28kh5ph2", "EfficientNet-B0"),
    ("FWD_D", "mb32ic480ih14oc80oh14kh1", "EfficientNet-B0"),
    ("BWD_D", "mb32ic112ih14oc672oh14kh1", "EfficientNet-B0"),
    ("FWD_D", "mb32ic1152ih7oc192oh7kh1", "EfficientNet-B0"),
    ("FWD_D", "mb32g32ic128ih56oc128oh56kh3ph1", "ResNeXt-50 32x4d"),
    ("FWD_D", "mb32g32ic512ih14oc512oh14kh3ph1", "ResNeXt-50 32x4d"),
    ("BWD_W", "mb32g32ic256ih28oc256oh28kh3ph1", "ResNeXt-50 32x4d"),
    ("FWD_D", "mb64ic3ih224oc768oh14kh16sh16", "ViT-B/16"),
    ("BWD_W", "mb64ic3ih224oc768oh14kh16sh16", "ViT-B/16"),
    ("FWD_D", "mb64ic3ih224oc96oh56kh4sh4", "ConvNeXt-T"),
    ("FWD_D", "mb64ic96ih56oc192oh28kh2sh2", "ConvNeXt-T"),
    ("BWD_D", "mb64ic192ih28oc384oh14kh2sh2", "ConvNeXt-T"),
    ("FWD_D", "mb8ic80iw3000oc512ow3000kw3pw1", "Whisper-base"),
    ("FWD_D", "mb8ic512iw3000oc512ow1500kw3sw2pw1", "Whisper-base"),
    ("BWD_W", "mb8ic512iw3000oc512ow1500kw3sw2pw1", "Whisper-base"),
    ("FWD_D", "mb4ic3id16ih112iw112oc64od16oh112ow112kd3kh3kw3pd1ph1pw1", "C3D"),
    ("FWD_D", "mb4ic64id16ih56iw56oc128od16oh56ow56kd3kh3kw3pd1ph1pw1", "C3D"),
    ("BWD_D", "mb4ic64id8ih56iw56oc64od8oh56ow56kd3kh1kw1pd1ph0pw0", "R(2+1)D"),
    ("FWD_D", "mb4ic64ih256oc64oh256kh3ph1", "UNet"),
    ("FWD_D", "mb4ic128ih128oc128oh128kh3ph1", "UNet"),
    ("BWD_D", "mb4ic256ih64oc128oh64kh3ph1", "UNet"),
    ("BWD_W", "mb4ic512ih32oc512oh32kh3ph1", "UNet"),
    ("FWD_D", "mb2ic320ih64oc320oh64kh3ph1", "Stable Diffusion 1.5"),
    ("FWD_D", "mb2ic1280ih16oc1280oh16kh3ph1", "Stable Diffusion 1.5"),
    ("BWD_D", "mb2ic640ih32oc640oh32kh3ph1", "Stable Diffusion 1.5"),
    ("FWD_D", "mb16ic3ih640oc32oh320kh3sh2ph1", "YOLOv8"),
    ("FWD_D", "mb16ic64ih160oc128oh80kh3sh2ph1", "YOLOv8"),
    ("BWD_W", "mb16ic32ih160oc32oh160kh3ph1", "YOLOv8"),
)

LINES = tuple(f"conv --dt=f16 --dir={direction} {_LAST} {layer}" for direction, layer, _ in _LAYERS)
