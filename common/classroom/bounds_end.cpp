// Where the code and the variables of a submission's object end, by the order of linking (guard.h).
extern "C" {
void worklog_text_end() {}
char worklog_data_end = 1;
char worklog_bss_end = 0;
__thread char worklog_shared_end = 0;
}
