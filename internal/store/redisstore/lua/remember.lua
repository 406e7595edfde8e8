-- Remember. Arguments: those of remember.
remember()
return 1
