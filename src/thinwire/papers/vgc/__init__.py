"""The experiment of VGC's paper (Tsuzuku, Imachi and Akiba 2018): its runs, its printed figures, and its claim."""
